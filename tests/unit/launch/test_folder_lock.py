from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sft_cli.errors import UsageError
from sft_cli.launch.folder_lock import FolderLock, is_held

HOLD = """
import sys
from pathlib import Path
from sft_cli.launch.folder_lock import FolderLock
lock = FolderLock.take(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.readline()
lock.release()
"""
ROOT = str(Path(__file__).parents[3])


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until it is told something or killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_second_process_is_told_who_has_it(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(UsageError, match=rf"already on in this folder \(process {holder.pid}\)"):
        FolderLock.take(tmp_path)


def test_killed_holder_has_it_no_more(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    FolderLock.take(tmp_path).release()
    assert not (tmp_path / ".lock").exists()


def test_asking_who_has_it_takes_nothing(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    assert is_held(tmp_path) is True
    assert is_held(tmp_path) is True
    holder.kill()
    holder.wait()
    assert is_held(tmp_path) is False, "its file is still there"
    assert is_held(tmp_path / "gone") is False


def test_released_lock_is_free(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.communicate("go\n")
    FolderLock.take(tmp_path).release()


def test_child_does_not_keep_it(tmp_path: Path) -> None:
    lock = FolderLock.take(tmp_path)
    child = subprocess.Popen(["sleep", "30"])
    lock.release()
    try:
        command = [sys.executable, "-c", HOLD, str(tmp_path)]
        done = subprocess.run(command, input="\n", env={**os.environ, "PYTHONPATH": ROOT}, text=True, timeout=20)
        assert done.returncode == 0
    finally:
        child.kill()
        child.wait()


def test_lock_survives_exec(tmp_path: Path) -> None:
    program = HOLD.replace(
        'print("held", flush=True)',
        "import os\nlock.keep_through_exec()\nos.execvp('sh', ['sh', '-c', 'echo held; read line'])",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(UsageError, match=re.escape(f"process {process.pid}")):
        FolderLock.take(tmp_path)
    process.communicate("\n")
    FolderLock.take(tmp_path).release()
