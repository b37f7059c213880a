"""The command line as a whole: help, version, usage errors, and how fast it answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import ROOT, Ended
from support.no_network import python_path

Python = Callable[..., subprocess.CompletedProcess[str]]

PRINT_MODULES = """
import atexit, json, sys
def show():
    print("MODULES" + json.dumps(sorted({name.split(".")[0] for name in sys.modules})), file=sys.stderr)
atexit.register(show)
sys.argv = ["sftune", *sys.argv[1:]]
from sft_cli.cli.app import main
main()
"""
# What reading a command line and a recipe needs, whoever writes it.
LIBRARIES = "import typer, typer._adapters, yaml, pydantic.json_schema"
HEAVY = {"torch", "transformers", "datasets", "numpy", "pyarrow", "rich", "tokenizers", "huggingface_hub"}


@pytest.fixture
def broken_recipe(folder: Path) -> str:
    (folder / "r.yaml").write_text(
        "model: {path: builtin:tiny-hybrid}\ndata: {train: builtin:chat}\nlearning_rate: 1e-5\n"
    )
    return "r.yaml"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "-h"],
        ["schema"],
        ["train", "r.yaml"],
        ["plan", "r.yaml"],
        ["data", "r.yaml"],
        ["bench", "r.yaml"],
    ],
)
def test_nothing_heavy_is_imported(python: Python, broken_recipe: str, arguments: list[str]) -> None:
    ended = python("-c", PRINT_MODULES, *arguments)
    modules = set(json.loads(ended.stderr.split("MODULES")[1]))
    assert "sft_cli" in modules
    assert not modules & HEAVY


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["schema"], ["train", "r.yaml"], ["plan", "r.yaml"], ["data", "r.yaml"], ["bench", "r.yaml"]],
)
def test_answers_within_half_a_second(broken_recipe: str, arguments: list[str]) -> None:
    """Of processor time; where a busy machine stretches that too, within twice what the libraries alone take there."""
    for _ in range(5):
        seconds, libraries_seconds = processor_seconds("-m", "sft_cli", *arguments), processor_seconds("-c", LIBRARIES)
        if seconds < max(0.5, 2 * libraries_seconds):
            return
    pytest.fail(f"{seconds:.2f} s, of which the libraries take {libraries_seconds:.2f} s")


def processor_seconds(*arguments: str) -> float:
    """User and system time of a python process of its own."""
    environment = {**os.environ, "PYTHONPATH": python_path(ROOT)}
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        usage = os.wait4(process.pid, 0)[2]
        process.returncode = 0  # it has been waited for here
    return usage.ru_utime + usage.ru_stime


def test_help_lists_the_commands_and_fits_80_columns(sftune: Callable[..., Ended]) -> None:
    ended = sftune("--help")
    assert ended.code == 0
    for command in ("train", "profile", "check-kernels", "plan", "data", "bench", "report", "schema", "init"):
        assert f"\n  {command} " in ended.out
    assert "..." not in ended.out.split("Commands:")[1]
    assert "\x1b" not in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80


def test_a_command_that_there_is_not(sftune: Callable[..., Ended]) -> None:
    ended = sftune("benchmark")
    assert ended.code == 2
    assert "No such command 'benchmark'" in ended.err


def test_version(sftune: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.2.3")
    assert sftune("--version").out == "sftune 1.2.3\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--no-such"], "--no-such"),
        (["train", "--set"], "--set"),
        (["train", "a.yaml", "b.yaml"], "b.yaml"),
        (["trian"], "Did you mean 'train'?"),
    ],
)
def test_usage_errors_end_with_2(sftune: Callable[..., Ended], arguments: list[str], words: str) -> None:
    ended = sftune(*arguments)
    assert ended.code == 2
    assert words in ended.err


def test_python_m_is_the_same_command(python: Python) -> None:
    ended = python("-m", "sft_cli", "plan", "gone.yaml")
    assert ended.returncode == 2
    assert ended.stderr == "error: gone.yaml: no such file\n  `sftune init FILE` writes a starter recipe.\n"
    assert ended.stdout == ""
