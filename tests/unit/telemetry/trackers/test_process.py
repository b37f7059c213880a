"""Whatever a tracker does, the run goes on and is told once."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sft_cli.telemetry.trackers import process as process_module
from sft_cli.telemetry.trackers.process import TrackerProcess
from sft_cli.telemetry.trackers.tracker import Opening, Point

ROOT = Path(__file__).parents[4]
Start = Callable[..., TrackerProcess]
SECONDS = 60.0
"""More than enough, also on a machine with other work."""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a tracker of some behaviour; nothing is left running."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    started: list[TrackerProcess] = []

    def begin(behaviour: str, **opening: Any) -> TrackerProcess:
        command = [sys.executable, "-m", "support.fake_tracker", behaviour, str(tmp_path / "got.jsonl")]
        given = Opening(tmp_path, "run", {"train.seed": 0}, **opening)
        started.append(TrackerProcess("fake", given, tmp_path / "fake.log", command))
        return started[-1]

    yield begin
    for one in started:
        one.finish(0)


def got(folder: Path) -> list[dict[str, Any]]:
    path = folder / "got.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def steps(folder: Path) -> list[int]:
    return [message["step"] for message in got(folder) if "step" in message]


def point(step: int, **values: float) -> Point:
    return Point(step, values or {"train/loss": 0.5 * step})


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run_whole(tracker: TrackerProcess, numbers: range = range(1, 6)) -> list[str]:
    for number in numbers:
        tracker.send(point(number))
    tracker.end("finished")
    tracker.finish(SECONDS)
    return tracker.complaints()


def test_all_is_there_at_the_end(start: Start, tmp_path: Path) -> None:
    assert run_whole(start("works")) == []
    messages = got(tmp_path)
    assert messages[0] == {"resumed_at": 0, "run_id": None, "config": {"train.seed": 0}}
    assert messages[1:-1] == [{"step": step, "values": {"train/loss": 0.5 * step}} for step in range(1, 6)]
    assert messages[-1] == {"end": "finished"}


def test_what_the_package_prints_is_kept_without_secrets(start: Start, tmp_path: Path) -> None:
    run_whole(start("works"))
    assert (tmp_path / "fake.log").read_text() == "a word of the package to https://<hidden>@example.org\n"
    assert all("hunter2" not in path.read_text() for path in tmp_path.iterdir())


def test_one_that_can_not_begin(start: Start, tmp_path: Path) -> None:
    (said,) = run_whole(start("can't begin"))
    assert said == (
        "WARNING: tracker fake failed: RuntimeError: the server at https://<hidden>@example.org says no (more in "
        f"{tmp_path / 'fake.log'}); training is not touched by it, and metrics.jsonl has every step"
    )


def test_one_that_crashes(start: Start) -> None:
    (said,) = run_whole(start("crashes"))
    assert "its process ended with 7" in said


def test_a_failure_is_told_once_and_the_next_points_are_tried(start: Start, tmp_path: Path) -> None:
    tracker = start("fails now and then")
    for number in range(1, 7):
        tracker.send(point(number))
        # One call a point: the first of them is known by the file, and others by what is remembered of them.
        wait_for(lambda number=number: number % 2 == 0 or number in steps(tmp_path))  # type: ignore[misc]
        if number % 2 == 0:
            time.sleep(0.2)
    tracker.end("finished")
    tracker.finish(SECONDS)
    first, lost = tracker.complaints()
    assert "failed: ConnectionError: call 2 did not reach it" in first
    assert "lost" in lost
    assert steps(tmp_path)[:2] == [1, 3]
    assert got(tmp_path)[-1] == {"end": "finished"}


@pytest.mark.parametrize("behaviour", ["never begins", "hangs", "never ends"])
def test_one_that_hangs_is_ended_when_its_time_is_up(start: Start, behaviour: str) -> None:
    tracker = start(behaviour)
    for number in range(1, 6):
        tracker.send(point(number))
    tracker.end("stopped")
    begin = time.monotonic()
    tracker.finish(0.5)
    assert time.monotonic() - begin < 10
    (said,) = tracker.complaints()
    assert "was not done in time" in said
    assert tracker._process.returncode == -9


def test_one_that_hangs_never_makes_the_run_wait(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "_MOST_WAITING", 100)
    tracker = start("never begins")
    begin = time.monotonic()
    for number in range(1, 20_000):
        tracker.send(point(number, **{f"train/{name}": 1.0 for name in "abcdefghij"}))
    assert time.monotonic() - begin < 10
    (said,) = tracker.complaints()
    assert "does not keep up" in said


def test_an_end_that_fails_is_told(start: Start, tmp_path: Path) -> None:
    (said,) = run_whole(start("can't end"))
    assert "OSError: the disk is full" in said
    assert steps(tmp_path) == [1, 2, 3, 4, 5]


def test_a_run_that_is_killed_leaves_no_process(start: Start, tmp_path: Path) -> None:
    """Nobody says that it is over: its end of the pipe is closed, and that is all."""
    tracker = start("works")
    tracker.send(point(1))
    wait_for(lambda: steps(tmp_path) == [1])
    tracker._waiting.put(None)
    tracker._process.wait(SECONDS)
    assert got(tmp_path)[-1] == {"end": "failed"}


def test_a_resumed_run_goes_on_in_the_same_one_without_steps_twice(start: Start, tmp_path: Path) -> None:
    tracker = start("works")
    tracker.send(point(1))
    tracker.send(Point(1, {"eval/loss": 3.0}))
    run_whole(tracker, range(2, 6))
    (tmp_path / "got.jsonl").unlink()
    again = start("works", resumed_at=3)
    again.send(Point(4, {"eval/loss": 2.0}))
    assert run_whole(again, range(4, 8)) == []
    messages = got(tmp_path)
    assert messages[0]["run_id"] == "first"
    assert messages[1] == {"step": 4, "values": {"eval/loss": 2.0}}, "a curve that had not come so far"
    assert steps(tmp_path) == [4, 6, 7]


def test_a_tracker_that_replaces_steps_gets_them_again(start: Start, tmp_path: Path) -> None:
    run_whole(start("replaces"))
    (tmp_path / "got.jsonl").unlink()
    run_whole(start("replaces", resumed_at=3), range(4, 8))
    assert steps(tmp_path) == [4, 5, 6, 7]


def test_a_run_that_begins_anew_begins_a_new_one(start: Start, tmp_path: Path) -> None:
    run_whole(start("works"))
    (tmp_path / "got.jsonl").unlink()
    run_whole(start("works"))
    assert got(tmp_path)[0]["run_id"] is None
    assert steps(tmp_path) == [1, 2, 3, 4, 5]
