from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sft_cli.data.loader import StepBatches
from sft_cli.errors import DataError
from sft_cli.plan.benching import Benching
from sft_cli.telemetry.meter import Meter, PhaseSeconds
from sft_cli.telemetry.terminal import SilentView
from sft_cli.train.report import Report
from sft_cli.train.step import Numbers, Totals
from sft_cli.train.timed_steps import Timed, timed_steps


class Run:
    """A run whose n-th step takes n seconds."""

    def __init__(self, steps: int, stop_at: int = 0, bad_at: int = 0) -> None:
        self.now, self.taken = 0.0, 0
        self.stop_at, self.bad_at = stop_at, bad_at
        self.report = Report(Meter(clock=lambda: self.now), (), SilentView(), lambda step: 0.0)
        self.steps: Iterator[StepBatches] = self.report.waiting(
            StepBatches(step, 0.0, ()) for step in range(1, steps + 1)
        )

    def train_step(self, step: int, micro_batches: object, stop_signal: int) -> Any:
        self.taken += 1
        self.now += step
        totals = Totals(10, 100 * step, 1000, 15 if step == self.stop_at else 0)
        return SimpleNamespace(totals=totals, read=lambda: Numbers(1.0, 1.0, step if step == self.bad_at else 0))

    def time(self) -> Timed:
        benching = Benching(steps=3, warm_up=2, started_at=0, result="")
        run: Any = (self.steps, self.train_step, self.report, lambda: 0, lambda: PhaseSeconds(self.now, 0, 0))
        return timed_steps(benching, *run)


def test_each_step_has_its_own_time_and_the_first_do_not_count() -> None:
    run = Run(steps=9)
    timed = run.time()
    assert [window.step_seconds for window in timed.warm_up] == [1, 2]
    assert [window.step_seconds for window in timed.timed] == [3, 4, 5]
    assert [window.tokens_per_second for window in timed.timed] == [100, 100, 100]
    assert [phases.forward for phases in timed.phases if phases] == [1 + 2 + 3, 1 + 2 + 3 + 4, 1 + 2 + 3 + 4 + 5]
    assert (timed.stopped_by, timed.was_finite) == (0, True)
    assert next(run.steps).step == 6, "the others are left for the profiler"


@pytest.mark.parametrize("at", [1, 4])
def test_a_stop_ends_it(at: int) -> None:
    run = Run(steps=9, stop_at=at)
    assert run.time().stopped_by == 15
    assert run.taken == at


def test_a_stream_that_ends_is_an_error() -> None:
    with pytest.raises(DataError, match="the stream has 4 steps, and a bench takes 7"):
        Run(steps=4).time()


def test_a_step_that_is_not_finite_is_told() -> None:
    assert not Run(steps=9, bad_at=3).time().was_finite
