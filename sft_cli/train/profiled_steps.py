"""Some real steps under torch's profiler, and nothing of them kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain, islice, repeat

from sft_cli.data.loader import StepBatches
from sft_cli.data.prefetch import prefetched
from sft_cli.parallel.ranges import marked
from sft_cli.plan.profiling import DATA_WAIT, UNPROFILED_STEPS, Profiling
from sft_cli.telemetry.meter import Window
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
    train_step: TrainStep,
    report: Report,
    stop_signal: Callable[[], int],
    profiler: AbstractContextManager[Callable[[], None]],
) -> Profiled:
    """Takes the first steps of a run, the same in a circle where it has too few. Every rank must take part.

    Each step's numbers are read, as a run that logs every step does: so a step ends when the device has done it.

    Args:
        steps: the run's, from its first.
        profiler: gives a function that tells it of the end of a step.
    """
    meter, unprofiled_seconds, was_finite = report.meter, 0.0, True
    batches_of_steps = islice(
        _waited_for(prefetched(chain.from_iterable(f() for f in repeat(steps)))), profiling.all_steps
    )
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
    assert window is not None, "there is at least one step, and it comes again"
    return Profiled(window, unprofiled_seconds, 0, was_finite)


def _waited_for(steps: Iterator[StepBatches]) -> Iterator[StepBatches]:
    while True:
        with marked(DATA_WAIT):
            batches = next(steps, None)
        if batches is None:
            return
        yield batches
