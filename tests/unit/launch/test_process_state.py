from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sft_cli.launch import process_state
from sft_cli.launch.process_state import exit_code, is_alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def wait_until_dead(pid: int) -> None:
    """Without waiting for it as its parent, which would make it go."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_process_that_works_or_was_stopped_is_alive(sleeper: subprocess.Popen[bytes]) -> None:
    assert is_alive(os.getpid())
    assert exit_code(os.getpid()) is None
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
    assert is_alive(sleeper.pid)
    assert exit_code(sleeper.pid) is None


def test_a_dead_one_that_nobody_has_waited_for_is_not(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    wait_until_dead(sleeper.pid)
    os.kill(sleeper.pid, 0)  # as a living one
    assert not is_alive(sleeper.pid)
    assert exit_code(sleeper.pid) == -signal.SIGKILL


def test_its_exit_code() -> None:
    with subprocess.Popen(["sh", "-c", "exit 7"]) as process:
        wait_until_dead(process.pid)
        assert exit_code(process.pid) == 7


def test_one_that_is_gone_is_not(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    assert not is_alive(sleeper.pid)
    assert exit_code(sleeper.pid) is None


@pytest.mark.parametrize(("flags", "is_dying"), [(0x400100, False), (0x400104, True)])
def test_one_that_frees_its_memory_is_not(monkeypatch: pytest.MonkeyPatch, flags: int, is_dying: bool) -> None:
    """Seconds, after the kernel has killed a large one."""
    fields = ["R", *["0"] * 5, str(flags), *["0"] * 42, "9"]
    monkeypatch.setattr(process_state, "_stat", lambda pid: fields)
    assert is_alive(os.getpid()) is not is_dying
    assert exit_code(os.getpid()) == (-signal.SIGKILL if is_dying else None)


def test_one_whose_memory_is_being_dumped_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_state, "_is_dumping", lambda pid: True)
    assert not is_alive(os.getpid())
