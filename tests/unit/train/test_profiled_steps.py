from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from sft_cli.data.loader import StepBatches
from sft_cli.errors import DataError
from sft_cli.plan.profiling import Profiling
from sft_cli.telemetry.meter import Meter
from sft_cli.telemetry.terminal import SilentView
from sft_cli.train.profiled_steps import Profiled, profiled_steps
from sft_cli.train.report import Report
from sft_cli.train.step import Numbers, Totals

EPOCH = 3
"""Steps that the data has."""


class Run:
    """A run whose steps take a second each, and what of it was called."""

    def __init__(self, stop_at: int = 0, bad_at: int = 0) -> None:
        self.now = 0.0
        self.taken: list[int] = []
        self.ended = 0
        self.stop_at, self.bad_at = stop_at, bad_at
        meter = Meter(clock=lambda: self.now)
        self.report = Report(meter, (), SilentView(), lambda step: 0.0)

    def steps(self) -> Iterator[StepBatches]:
        return (StepBatches(step, 0.0, ()) for step in range(1, EPOCH + 1))

    def train_step(self, step: int, micro_batches: object, stop_signal: int) -> Any:
        self.taken.append(step)
        self.now += 1
        count = len(self.taken)
        totals = Totals(10, 100 * count, 1000, 15 if count == self.stop_at else 0)
        bad = step if self.bad_at and count >= self.bad_at else 0
        return SimpleNamespace(totals=totals, read=lambda: Numbers(1.0, 1.0, bad))

    @contextmanager
    def profiler(self) -> Iterator[Callable[[], None]]:
        def end_step() -> None:
            self.ended += 1
            if self.ended == 3:
                self.now += 100  # the profiler begins

        yield end_step

    def profile(self, steps: int, comes_again: bool = True) -> Profiled:
        run: Any = (self.steps, comes_again, self.train_step, self.report, lambda: 0, self.profiler())
        return profiled_steps(Profiling(steps=steps), *run)


def test_the_first_steps_are_not_counted_and_few_steps_come_again() -> None:
    run = Run()
    profiled = run.profile(steps=4)
    assert run.taken == [1, 2, 3, 1, 2, 3, 1]
    assert run.ended == 7
    assert profiled.window.steps == 4
    assert profiled.window.tokens == 400 + 500 + 600 + 700
    assert profiled.window.step_seconds == 1
    assert profiled.stopped_by == 0
    assert profiled.was_finite


@pytest.mark.parametrize("at", [1, 5])
def test_a_stop_ends_it(at: int) -> None:
    run = Run(stop_at=at)
    assert run.profile(steps=4).stopped_by == 15
    assert len(run.taken) == at


def test_a_stream_comes_once() -> None:
    with pytest.raises(DataError, match="the stream has 3 steps, and a profile takes 7"):
        Run().profile(steps=4, comes_again=False)


def test_a_step_that_is_not_finite_is_told() -> None:
    assert not Run(bad_at=3).profile(steps=1).was_finite
