"""`sftune ...` in this process, and in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import typer.main
from support.command_line import ROOT, Ended
from support.no_network import python_path

from sft_cli.cli.app import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the test, empty; caches go below it too."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "work"


@pytest.fixture(scope="session")
def get_command() -> Callable[..., object]:
    """typer's, which makes the same commands out of an app every time it is called."""
    return cache(typer.main.get_command)


@pytest.fixture
def sftune(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    get_command: Callable[..., object],
) -> Callable[..., Ended]:
    """Runs a command line in this process."""
    monkeypatch.setattr(typer.main, "get_command", get_command)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["sftune", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        code = caught.value.code
        output = capsys.readouterr()
        return Ended(code if isinstance(code, int) else 0, output.out, output.err)

    return run


@pytest.fixture
def python(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs python with arguments in a process of its own."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": python_path(ROOT)}
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    return run
