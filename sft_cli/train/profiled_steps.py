"""Some real steps under torch's profiler, and nothing of them kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from sft_cli.data.loader import StepBatches
from sft_cli.plan.profiling import UNPROFILED_STEPS, Profiling
from sft_cli.telemetry.meter import Window
from sft_cli.train.first_steps import first_steps, too_few
from sft_cli.train.report import Report
from sft_cli.train.step import TrainStep


@dataclass(frozen=True)
class Profiled:
    """What the steps were."""

    window: Window
    """Of the profiled ones."""
    unprofiled_step_seconds: float
    """Of the last one before the profiler was on."""
    stopped_by: int
    """The signal that ended it before the last step; 0 when all were taken."""
    was_finite: bool


def profiled_steps(
    profiling: Profiling,
    steps: Callable[[], Iterator[StepBatches]],
    comes_again: bool,
    train_step: TrainStep,
    report: Report,
    stop_signal: Callable[[], int],
    profiler: AbstractContextManager[Callable[[], None]],
) -> Profiled:
    """Takes the first steps of a run. Every rank must take part.

    Each step's numbers are read, as a run that logs every step does: so a step ends when the device has done it.

    Args:
        steps: the run's, from its first.
        comes_again: whether they may be asked for again, where they are too few; not those of a stream.
        profiler: gives a function that tells it of the end of a step.

    Raises:
        DataError: a stream has too few.
    """
    meter, unprofiled_seconds, was_finite, number, window = report.meter, 0.0, True, 0, None
    batches_of_steps = first_steps(steps, profiling.all_steps, come_again=comes_again)
    with profiler as end_step:
        begin = time.perf_counter()
        for number, batches in enumerate(report.waiting(batches_of_steps), start=1):
            result = train_step(batches.step, batches.micro_batches, stop_signal())
            was_finite &= result.read().first_bad_step == 0
            report.count(result)
            if result.totals.stop_signal:
                return Profiled(meter.read(), unprofiled_seconds, result.totals.stop_signal, was_finite)
            if number == UNPROFILED_STEPS:
                unprofiled_seconds = time.perf_counter() - begin
            window = meter.read() if number == profiling.all_steps else None
            end_step()
            if number < profiling.first_step:
                # Counts from here on, if no other step comes before the first that is profiled. Not before `end_step`,
                # where the profiler may take seconds to begin.
                meter.start()
            begin = time.perf_counter()
    if window is None:
        raise too_few(number, profiling.all_steps, "a profile")
    return Profiled(window, unprofiled_seconds, 0, was_finite)
