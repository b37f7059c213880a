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


@pytest.fixture
def control(tmp_path: Path) -> ControlFolder:
    folder = ControlFolder(tmp_path / "control")
    folder.create()
    return folder


def ended_with(control: ControlFolder, agent: subprocess.Popen[bytes], workers: dict[int, int]) -> str:
    """
    Args:
        workers: process ids by rank.
    """
    for rank, pid in workers.items():
        (control.path / "workers" / f"rank-{rank}.pid").write_text(str(pid))
    run = supervise._Run(agent, control, supervise._StopSignals(), lambda line: None, True)
    run.wait()
    run.kill()
    world, logs = World(ranks=3, nodes=1, device="cpu"), control.path.parent
    with pytest.raises(SftError) as raised:
        supervise._exit_code(run, control, world, logs, logs / "launcher.log")
    return str(raised.value)


def lose_peer(control: ControlFolder) -> None:
    """Rank 0 does."""
    lost = RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer")
    control.write_failure(describe_failure(lost, 0))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_AFTER_FAILURE_SECONDS", 0.2)
    monkeypatch.setattr(supervise, "_AFTER_KILL_SECONDS", 0.2)


def test_a_dead_rank_does_not_hang(control: ControlFolder, sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    agent, rank_1 = sleeper(), sleeper()
    lose_peer(control)
    rank_1.kill()
    os.waitid(os.P_PID, rank_1.pid, os.WEXITED | os.WNOWAIT)  # dead, and not waited for
    assert "rank 1 was killed by SIGKILL" in ended_with(control, agent, {1: rank_1.pid})


def test_a_stopped_one_does(control: ControlFolder, sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    agent, rank_1 = sleeper(), sleeper()
    lose_peer(control)
    rank_1.send_signal(signal.SIGSTOP)
    assert "rank 1 hangs" in ended_with(control, agent, {1: rank_1.pid})


def test_a_rank_that_others_gave_up_hangs_though_torchrun_has_told_of_the_first_of_them_alone(
    control: ControlFolder, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    agent, hanging, gone = sleeper(), sleeper(), sleeper()
    control.write_exits({0: -signal.SIGABRT})
    gone.kill()
    gone.wait()  # by torchrun, while it ended those that the first one had left
    assert "rank 1 hangs" in ended_with(control, agent, {1: hanging.pid, 2: gone.pid})


def test_the_rank_that_torchrun_saw_die_first_is_the_cause(
    control: ControlFolder, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    agent, gone = sleeper(), sleeper()
    control.write_exits({2: -signal.SIGKILL})
    gone.kill()
    gone.wait()  # it could not go on without rank 2
    assert "rank 2 was killed by SIGKILL" in ended_with(control, agent, {0: gone.pid})
