from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sft_cli.launch.temporary import sweep, temporary_folder

HOLDS_ONE = """
import sys
from sft_cli.launch.temporary import temporary_folder
with temporary_folder() as folder:
    (folder / "errors").mkdir()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def grow_old(folder: Path) -> None:
    os.utime(folder / ".lock", (0, 0))


def test_it_goes_with_the_block(tmp_path: Path) -> None:
    with temporary_folder() as folder:
        (folder / "workers").mkdir()
        assert folder.parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_what_a_killed_launcher_left_goes_with_the_next_start(tmp_path: Path) -> None:
    """Not while it lives, and not just after: a start has made its folder before it has locked it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    launcher = subprocess.Popen([sys.executable, "-c", HOLDS_ONE], **pipes)
    assert launcher.stdout is not None
    folder = Path(launcher.stdout.readline().strip())
    grow_old(folder)
    sweep(tmp_path)
    assert folder.exists()
    launcher.kill()
    launcher.communicate()
    assert folder.exists()
    with temporary_folder():
        assert not folder.exists()


def test_neither_young_nor_foreign_folders_are_touched(tmp_path: Path) -> None:
    for name in ("sftune-launch-young", "sftune-launch-unlocked", "sftune-dry-run-x"):
        (tmp_path / name).mkdir()
    (tmp_path / "sftune-launch-young" / ".lock").touch()
    (tmp_path / "sftune-dry-run-x" / ".lock").touch()
    grow_old(tmp_path / "sftune-dry-run-x")
    sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
