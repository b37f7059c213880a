"""`sftune report RUN_DIR`; what is on the page is tested in tests/unit/telemetry/report."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import Ended
from support.run_folders import step, write_run

Sftune = Callable[..., Ended]


@pytest.fixture
def run(folder: Path) -> Path:
    """Half written, and nobody has it."""
    return write_run(folder / "runs" / "mine", [step(1), step(2), '{"step": 3, "lo'], plan={"steps": 9})


def test_it_writes_the_page_beside_the_run(sftune: Sftune, run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    ended = sftune("report", "runs/mine")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "wrote runs/mine/report.html: broken off, step 2\n"
    assert "<h1>mine" in (run / "report.html").read_text()
    assert {
        path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "report.html"
    } == before
    assert sftune("report", "runs/mine").code == 0, "once more, over the first"


def test_a_plan_alone_is_enough(sftune: Sftune, folder: Path) -> None:
    (folder / "dry").mkdir()
    (folder / "dry" / "plan.json").write_text("{}")
    assert "not begun, no step yet" in sftune("report", "dry").out


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("gone", "gone is not there"),
        ("file.txt", "is a file, not a run folder"),
        ("empty", "this folder holds no run"),
        ("runs", "Give one of the runs in it: mine."),
        ("runs/mine/logs", "It is a part of the run"),
    ],
)
def test_what_is_no_run_ends_with_2(sftune: Sftune, folder: Path, run: Path, path: str, words: str) -> None:
    (folder / "empty").mkdir()
    (folder / "file.txt").write_text("x")
    ended = sftune("report", path)
    assert ended.code == 2
    assert words in ended.err
    assert not list(folder.rglob("report.html"))


def test_a_folder_that_takes_no_page_ends_with_5(sftune: Sftune, run: Path) -> None:
    (run / "report.html").mkdir()
    ended = sftune("report", str(run))
    assert ended.code == 5
    assert "the page can't be written" in ended.err


def test_a_run_that_is_on_is_running(sftune: Sftune, run: Path) -> None:
    """Another process has the lock."""
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        from sft_cli.launch.folder_lock import FolderLock

        FolderLock.take(run)
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        assert "running, step 2" in sftune("report", "runs/mine").out
    finally:
        os.write(done[1], b"x")
        os.waitpid(child, 0)
    assert "broken off, step 2" in sftune("report", "runs/mine").out


def test_no_torch_nor_anything_else_that_is_slow(python: Callable[..., object], run: Path) -> None:
    program = (
        "import sys, json\n"
        "from sft_cli.cli.app import app\n"
        "try: app(['report', 'runs/mine'])\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    ended = python("-c", program)
    modules = set(json.loads(ended.stdout.splitlines()[-1]))  # type: ignore[attr-defined]
    assert not modules & {"torch", "transformers", "datasets", "numpy", "pyarrow", "rich"}
