from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sft_cli.telemetry.detachable_stream import detachable
from sft_cli.telemetry.records import EvaluationRecord, StepRecord
from sft_cli.telemetry.terminal import PlainView, SilentView, open_view

MakeStep = Callable[..., StepRecord]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def steps_shown(total_steps: int, seconds_a_step: float, make_step: MakeStep) -> list[int]:
    stream, clock = io.StringIO(), Clock()
    with PlainView(stream, total_steps, clock) as view:
        for step in range(1, total_steps + 1):
            view.show_step(make_step(step))
            clock.now += seconds_a_step
    return [int(line.split("/")[0].removeprefix("step")) for line in stream.getvalue().splitlines()]


def test_short_run_shows_every_step(make_step: MakeStep) -> None:
    assert steps_shown(50, 0.001, make_step) == list(range(1, 51))


def test_fast_run_shows_about_a_line_a_second_and_the_last(make_step: MakeStep) -> None:
    assert steps_shown(100, 0.25, make_step) == [*range(1, 100, 4), 100]


def test_slow_run_shows_every_step(make_step: MakeStep) -> None:
    assert steps_shown(60, 3.0, make_step) == list(range(1, 61))


def test_plain_lines_have_no_colour_and_are_not_wrapped(make_step: MakeStep) -> None:
    stream = io.StringIO()
    with PlainView(stream, 2) as view:
        view.say("exporting to " + "long/" * 40)
        view.show_evaluation(EvaluationRecord(0, 5.5, 10))
        view.show_step(make_step(1))
    assert stream.getvalue().splitlines() == [
        "exporting to " + "long/" * 40,
        "step 0/2  eval loss 5.5000",
        "step 1/2  loss 2.5000  1,800 tok/s  lr 3.0e-03  0:00 left",
    ]


def test_other_ranks_are_silent(make_step: MakeStep, capfd: pytest.CaptureFixture[str]) -> None:
    with open_view(None, 2) as view:
        assert isinstance(view, SilentView)
        view.say("x")
        view.show_step(make_step(1))
        view.show_evaluation(EvaluationRecord(1, 1.0, 1))
    assert capfd.readouterr() == ("", "")


def test_what_is_said_is_noted_too(make_step: MakeStep, tmp_path: Path) -> None:
    noted: list[str] = []
    with (tmp_path / "out").open("w") as stream, open_view(stream, 2, noted.append) as view:
        view.say("saved x")
        view.show_evaluation(EvaluationRecord(1, 1.5, 10))
        view.show_step(make_step(1))
    assert noted == ["saved x"], "evaluations and steps are in metrics.jsonl"
    assert len((tmp_path / "out").read_text().splitlines()) == 3


def test_pipe_gets_plain_lines_and_no_rich(tmp_path: Path) -> None:
    program = (
        "import sys; from sft_cli.telemetry.terminal import open_view, PlainView\n"
        "with open_view(sys.stdout, 3) as view: view.say('said'); assert isinstance(view, PlainView)\n"
        "assert 'rich' not in sys.modules"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "said\n"


def test_reader_that_leaves_does_not_end_the_run(make_step: MakeStep) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream, open_view(stream, 3) as view:
        view.say("first")
        assert os.read(reading, 100) == b"first\n"
        os.close(reading)
        view.say("nobody reads this")
        view.show_step(make_step(1))


def test_detached_stream_can_be_closed() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        kept = detachable(stream)
        kept.write("no line end, so it stays in the buffer")
        kept.close()
        stream.write("also buffered")
