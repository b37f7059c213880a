"""Two "machines" on loopback: two launchers of the real command line, one CPU rank each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.no_network import python_path
from support.ports import free_port
from support.sftune import command, tiny, training_steps

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children die with the launcher on Linux")

HERE = Path(__file__).parent
FOREVER = {"train.max_steps": "500", "launch.gpus": "1", "checkpoint.export": "false"}

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(folder: Path, **changes: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command("train", *tiny(folder, **changes)),
            cwd=folder,
            env={**os.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def nodes(start: Start, folder: Path, **changes: str) -> list[subprocess.Popen[str]]:
    both = {**FOREVER, "launch.nodes": "2", "launch.rendezvous": f"127.0.0.1:{free_port()}", **changes}
    return [start(folder, **both, **{"launch.node_rank": str(rank)}) for rank in (0, 1)]


def wait_for_steps(run: Path, count: int, *processes: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() or len(training_steps(run)) < count:
        assert time.monotonic() < deadline
        for process in processes:
            assert process.poll() is None, process.communicate()
        time.sleep(0.1)


@pytest.mark.long
def test_two_nodes_are_as_one_of_two_ranks_and_a_signal_to_either_stops_both(tmp_path: Path, start: Start) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    alone = start(tmp_path / "one", **{**FOREVER, "launch.gpus": "2"})
    wait_for_steps(tmp_path / "one" / "run", 3, alone)
    alone.send_signal(signal.SIGTERM)
    assert alone.wait(60) == 143

    first, second = nodes(start, tmp_path / "two")
    run = tmp_path / "two" / "run"
    wait_for_steps(run, 3, first, second)
    second.send_signal(signal.SIGTERM)
    ended = [process.communicate(timeout=60) for process in (first, second)]
    assert (first.returncode, second.returncode) == (143, 143), ended
    losses = [[line["loss"] for line in training_steps(tmp_path / name / "run")[:3]] for name in ("one", "two")]
    assert losses[0] == losses[1]
    assert [path.name for path in (run / "checkpoints").glob("step-*")], "stopped without a checkpoint"
    assert {path.name for path in (run / "logs").iterdir()} == {
        "events.jsonl", "launcher.log", "launcher-1.log", "rank-0.log", "rank-1.log",
    }  # fmt: skip
    assert not list(run.glob(".nodes-*"))


@pytest.mark.long
def test_a_killed_launcher_ends_the_other_node(tmp_path: Path, start: Start) -> None:
    first, second = nodes(start, tmp_path)
    wait_for_steps(tmp_path / "run", 1, first, second)
    second.kill()
    killed_at = time.monotonic()
    _, stderr = first.communicate(timeout=60)
    assert time.monotonic() - killed_at < 20
    assert first.returncode == 1
    assert "error: node 1 is gone" in stderr


@pytest.mark.long
def test_nodes_of_different_plans_say_what_differs(tmp_path: Path, start: Start) -> None:
    both = {**FOREVER, "launch.nodes": "2", "launch.rendezvous": f"127.0.0.1:{free_port()}"}
    started = [
        start(tmp_path, **both, **{"launch.node_rank": str(rank), "optimizer.learning_rate": rate})
        for rank, rate in enumerate(("0.001", "0.002"))
    ]
    for process in started:
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 2
        assert "recipe.optimizer.learning_rate is 0.001 on node 0 and 0.002 on node 1" in stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("acts", "told"),
    [
        (("hang", "killed"), "rank 1 was killed by SIGKILL"),
        (("data_error", "hang"), "chat.jsonl:104: not a row (rank 0)"),
        (("lost_peer", "hang"), "rank 1 hangs"),
    ],
)
def test_both_nodes_name_the_rank_that_failed(tmp_path: Path, acts: tuple[str, str], told: str) -> None:
    for launcher in fake_nodes(tmp_path / "logs", acts):
        _, stderr = launcher.communicate(timeout=60)
        assert launcher.returncode == (3 if "data_error" in acts else 1), stderr
        assert told in stderr


@pytest.mark.long
def test_without_node_0_there_is_no_store_and_node_1_ends(tmp_path: Path) -> None:
    first, second = fake_nodes(tmp_path / "logs", ("hang", "hang"))
    deadline = time.monotonic() + 60
    logs = [tmp_path / "logs" / f"rank-{rank}.log" for rank in (0, 1)]
    while not all(log.exists() and "stdin holds" in log.read_text() for log in logs):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    first.kill()
    killed_at = time.monotonic()
    _, stderr = second.communicate(timeout=60)
    first.communicate()
    assert time.monotonic() - killed_at < 20
    assert second.returncode == 1
    assert "node 0 is gone" in stderr


def fake_nodes(logs: Path, acts: tuple[str, str]) -> list[subprocess.Popen[str]]:
    """Two launchers whose workers need no torch."""
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(HERE, HERE.parents[1]),
        "WORKER_ACTS": json.dumps(dict(enumerate(acts))),
    }
    words = [sys.executable, str(HERE / "launched_launcher.py"), str(logs), "2"]
    port = str(free_port())
    return [
        subprocess.Popen([*words, str(node), port], env=environment, stderr=subprocess.PIPE, text=True)
        for node in (0, 1)
    ]
