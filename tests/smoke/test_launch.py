"""The launcher with real processes and signals; the workers are `launched_worker`, which need no torch.

What depends on torchrun has torchrun; the rest has `launched_agent`, which is there seconds sooner.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.no_network import python_path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Launch:
    """One launcher with workers that do what they are told; every process of it carries a token."""

    def __init__(self, logs: Path, acts: list[str], *, torchrun: bool) -> None:
        self.logs = logs
        self.token = uuid.uuid4().hex
        self.ranks = len(acts)
        environment = {
            **os.environ,
            "PYTHONPATH": python_path(HERE, ROOT),
            "WORKER_ACTS": json.dumps(dict(enumerate(acts))),
            "LAUNCH_TOKEN": self.token,
            "TMPDIR": str(logs.parent),
            **({} if torchrun else {"WITHOUT_TORCHRUN": "1"}),
        }
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "launched_launcher.py"), str(logs), str(self.ranks)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_workers(self) -> None:
        """Until every rank is inside its session."""
        logs = [self.logs / f"rank-{rank}.log" for rank in range(self.ranks)]

        def are_inside() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return all(log.exists() and "stdin holds" in log.read_text() for log in logs)

        wait_until(are_inside, seconds=60)

    def worker(self, rank: int) -> int:
        """Its process id."""
        log = (self.logs / f"rank-{rank}.log").read_text()
        return int(log.split("pid ", 1)[1].split()[0])

    def end(self) -> tuple[int, str, str]:
        stdout, stderr = self.process.communicate(timeout=60)
        return self.process.returncode, stdout, stderr

    def living(self) -> list[int]:
        """Every process that carries the token, wherever it hangs in the tree."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.token.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found


Start = Callable[..., Launch]


def wait_until(is_true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Start]:
    started: list[Launch] = []

    def start(acts: list[str], *, torchrun: bool = True) -> Launch:
        started.append(Launch(tmp_path / "logs", acts, torchrun=torchrun))
        return started[-1]

    yield start
    for one in started:
        for pid in one.living():
            os.kill(pid, signal.SIGKILL)
        one.process.communicate()


def test_finished_run_is_zero_and_each_output_goes_where_it_belongs(launch: Start) -> None:
    run = launch(["finish", "finish"])
    exit_code, stdout, stderr = run.end()
    assert (exit_code, stdout, stderr) == (0, "terminal of rank 0\n", "")
    for rank in (0, 1):
        log = (run.logs / f"rank-{rank}.log").read_text()
        assert "this line is for the log\n" in log
        assert "stdin holds 0 characters\n" in log
    assert (run.logs / "launcher.log").read_text().count("an early line\n") == 2
    assert run.living() == []


def test_first_signal_lets_workers_save(launch: Start) -> None:
    run = launch(["wait", "wait"])
    run.wait_for_workers()
    told_at = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    exit_code, _, stderr = run.end()
    assert exit_code == 143
    assert stderr.count("stopping after this step and saving; once more ends it at once, without saving\n") == 1
    assert time.monotonic() - told_at >= 3.0, "the workers were cut short while stopping"
    assert run.living() == []


def test_an_announced_end_saves_and_the_end_itself_cuts_nothing_short(launch: Start) -> None:
    """Slurm sends SIGUSR1 before a job's time is over (`--signal=USR1@120`), and SIGTERM when it is."""
    run = launch(["wait", "wait"], torchrun=False)
    run.wait_for_workers()
    told_at = time.monotonic()
    run.process.send_signal(signal.SIGUSR1)
    time.sleep(1.0)
    run.process.send_signal(signal.SIGTERM)
    exit_code, _, stderr = run.end()
    assert exit_code == 143, stderr
    assert "SIGUSR1: stopping after this step" in stderr
    assert time.monotonic() - told_at >= 3.0, "the workers were cut short while stopping"
    assert run.living() == []


def test_a_second_announcement_is_a_second_signal(launch: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here of a run that saves nothing, a dry run say, and does not speak of saving."""
    monkeypatch.setenv("NOTHING_TO_SAVE", "1")
    run = launch(["hang", "hang"], torchrun=False)
    run.wait_for_workers()
    run.process.send_signal(signal.SIGUSR1)
    time.sleep(1.0)
    run.process.send_signal(signal.SIGUSR1)
    exit_code, _, stderr = run.end()
    assert exit_code == 1
    assert "SIGUSR1: stopping after this step; once more ends it at once\n" in stderr
    assert "killed by a second SIGUSR1; nothing of this run was to be saved" in stderr


def test_second_signal_ends_all_at_once(launch: Start) -> None:
    run = launch(["hang", "hang"], torchrun=False)
    run.wait_for_workers()
    run.process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    assert run.process.poll() is None
    assert len(run.living()) >= 4, "launcher, agent and two workers wait for the save"
    run.process.send_signal(signal.SIGINT)
    exit_code, _, stderr = run.end()
    assert exit_code == 1
    assert "killed by a second SIGINT" in stderr
    wait_until(lambda: run.living() == [], seconds=2)


def test_signal_before_any_worker_has_started(launch: Start) -> None:
    run = launch(["hang", "hang"])
    wait_until(lambda: (run.logs / "launcher.log").exists() and len(run.living()) >= 2, seconds=30)
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 130
    wait_until(lambda: run.living() == [], seconds=10)


def test_no_orphan_after_the_launcher_is_killed(launch: Start) -> None:
    run = launch(["hang", "hang"])
    run.wait_for_workers()
    run.process.kill()
    run.end()
    wait_until(lambda: run.living() == [], seconds=15)


def test_error_of_one_rank_ends_the_others_and_appears_once(launch: Start) -> None:
    run = launch(["hang", "data_error"])
    run.wait_for_workers()
    failed_at = time.monotonic()
    exit_code, stdout, stderr = run.end()
    assert exit_code == 3
    assert stderr == "DataError: chat.jsonl:104: not a row (rank 1)\n  Mend the row.\n"
    assert stdout == "terminal of rank 0\n"
    assert time.monotonic() - failed_at < 15
    assert "DataError" in (run.logs / "rank-1.log").read_text()
    assert run.living() == []


def test_silent_death_is_named_before_its_consequence(launch: Start) -> None:
    run = launch(["lost_peer", "killed"])
    exit_code, _, stderr = run.end()
    assert exit_code == 1
    assert "rank 1 was killed by SIGKILL" in stderr
    assert "the last words" in stderr
    assert "closed by peer" not in stderr


def test_a_rank_that_hangs_is_named_and_says_where(launch: Start) -> None:
    """The other one has waited for it in a collective until that timed out."""
    run = launch(["lost_peer", "hang"], torchrun=False)
    exit_code, _, stderr = run.end()
    assert exit_code == 1
    assert "rank 1 hangs" in stderr
    assert "launched_worker.py" in (run.logs / "rank-1.log").read_text(), "the stacks of its threads"
    assert run.living() == []


def test_a_rank_that_was_stopped_from_outside_is_named_too(launch: Start) -> None:
    run = launch(["lost_peer_later", "hang"], torchrun=False)
    run.wait_for_workers()
    os.kill(run.worker(1), signal.SIGSTOP)
    exit_code, _, stderr = run.end()
    assert exit_code == 1
    assert "rank 1 hangs" in stderr
    assert run.living() == []


def test_single_rank_that_leaves_without_a_word_is_no_success(launch: Start) -> None:
    exit_code, _, stderr = launch(["vanish"], torchrun=False).end()
    assert exit_code == 1
    assert "rank 0 left before the run was done" in stderr


def joined_worker(logs: Path, act: str) -> subprocess.Popen[str]:
    """Rank 1 of 2 as torchrun or srun would start it, without our launcher."""
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    return subprocess.Popen(
        [sys.executable, str(HERE / "launched_worker.py"), "--plan", "plan.json", "--logs", str(logs)],
        env={**os.environ, **ranks, "PYTHONPATH": python_path(ROOT), "WORKER_ACTS": json.dumps({"1": act})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_joined_rank_says_itself_what_is_wrong(tmp_path: Path) -> None:
    worker = joined_worker(tmp_path, "data_error")
    _, stderr = worker.communicate(timeout=30)
    assert worker.returncode == 3
    assert stderr == "error: rank 1: chat.jsonl:104: not a row\n  Mend the row.\n"
    (event,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert (event["event"], event["what"], event["where"]) == ("failed", "rank 1: not a row", "chat.jsonl:104")


def test_joined_rank_stops_with_the_signals_own_code(tmp_path: Path) -> None:
    worker = joined_worker(tmp_path, "wait")
    log = tmp_path / "rank-1.log"
    wait_until(lambda: log.exists() and "stdin holds" in log.read_text(), seconds=30)
    worker.send_signal(signal.SIGTERM)
    assert worker.communicate(timeout=30) == ("an early line\n", "")
    assert worker.returncode == 143
