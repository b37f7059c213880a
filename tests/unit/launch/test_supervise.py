"""What the launcher makes of its ranks where torchrun, which alone can wait for them, is too busy to do so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sft_cli.errors import SftError
from sft_cli.launch import supervise
from sft_cli.launch.control import ControlFolder
from sft_cli.launch.failures import describe_failure
from sft_cli.plan.plan import World

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts processes that wait, each at the head of a session, as a worker is."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "60"], start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def ended_with(tmp_path: Path, agent: subprocess.Popen[bytes], rank_1: subprocess.Popen[bytes]) -> str:
    """Rank 0 has lost its peer, which is rank 1."""
    control = ControlFolder(tmp_path / "control")
    control.create()
    lost = RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer")
    control.write_failure(describe_failure(lost, 0))
    (control.path / "workers" / "rank-1.pid").write_text(str(rank_1.pid))
    run = supervise._Run(agent, control, supervise._StopSignals(), lambda line: None, True)
    run.wait()
    run.kill()
    with pytest.raises(SftError) as raised:
        supervise._exit_code(run, control, World(ranks=2, nodes=1, device="cpu"), tmp_path, tmp_path / "launcher.log")
    return str(raised.value)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_AFTER_FAILURE_SECONDS", 0.2)
    monkeypatch.setattr(supervise, "_AFTER_KILL_SECONDS", 0.2)


def test_a_dead_rank_does_not_hang(tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    agent, rank_1 = sleeper(), sleeper()
    rank_1.kill()
    os.waitid(os.P_PID, rank_1.pid, os.WEXITED | os.WNOWAIT)  # dead, and not waited for
    assert "rank 1 was killed by SIGKILL" in ended_with(tmp_path, agent, rank_1)


def test_a_stopped_one_does(tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    agent, rank_1 = sleeper(), sleeper()
    rank_1.send_signal(signal.SIGSTOP)
    assert "rank 1 hangs" in ended_with(tmp_path, agent, rank_1)
