from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sft_cli.telemetry.progress import Progress, format_duration
from sft_cli.telemetry.records import StepRecord

MakeStep = Callable[..., StepRecord]


def test_before_the_first_step() -> None:
    assert Progress(400).describe() == "step   0/400"


def test_line_of_a_step(make_step: MakeStep) -> None:
    progress = Progress(400).after(make_step(12))
    assert progress.describe() == "step  12/400  loss 2.5000  1,800 tok/s  lr 3.0e-03  3:14 left"
    assert "eval 1.2500" in replace(progress, eval_loss=1.25).describe()


def test_first_losses_are_averaged_and_old_ones_forgotten(make_step: MakeStep) -> None:
    progress = Progress(1000)
    for step, loss in enumerate([4.0, 2.0], start=1):
        progress = progress.after(make_step(step, loss))
    assert (progress.loss, progress.smoothed_loss) == (2.0, pytest.approx(3.0))
    for step in range(3, 203):
        progress = progress.after(make_step(step, 1.0))
    assert progress.smoothed_loss == pytest.approx(1.0, abs=1e-3)


def test_time_left_follows_the_speed(make_step: MakeStep) -> None:
    progress = Progress(10)
    assert progress.seconds_left is None
    for step in range(1, 5):
        progress = progress.after(make_step(step))
    assert progress.seconds_left == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (41.6, "0:42"), (59.7, "1:00"), (725, "12:05"), (11229, "3:07:09"), (183_900, "2 d 03:05")],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
