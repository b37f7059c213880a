"""Some real steps, each with its own time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from sft_cli.data.loader import StepBatches
from sft_cli.plan.benching import Benching
from sft_cli.telemetry.meter import PhaseSeconds, Window
from sft_cli.train.first_steps import too_few
from sft_cli.train.report import Report
from sft_cli.train.step import TrainStep


@dataclass(frozen=True)
class Timed:
    """What the steps were."""

    warm_up: tuple[Window, ...]
    """One a step that came before those that count."""
    timed: tuple[Window, ...]
    """One a step."""
    phases: tuple[PhaseSeconds | None, ...]
    """Of each of those that count."""
    stopped_by: int
    """The signal that ended it early; 0 when all were taken."""
    was_finite: bool


def timed_steps(
    benching: Benching,
    steps: Iterator[StepBatches],
    train_step: TrainStep,
    report: Report,
    stop_signal: Callable[[], int],
    phases: Callable[[], PhaseSeconds | None],
) -> Timed:
    """Takes the first steps of a run. Every rank must take part.

    Each step's numbers are read, as a run that logs every step does: so a step ends when the device has done it.

    Args:
        steps: as `report.waiting` gives them. It takes no more than it needs, so that others can go on.
        phases: of the steps since it was asked last.

    Raises:
        DataError: there are too few: a stream has ended.
    """
    windows: list[Window] = []
    of_steps: list[PhaseSeconds | None] = []
    wanted, was_finite = benching.warm_up + benching.steps, True
    for batches in islice(steps, wanted):
        result = train_step(batches.step, batches.micro_batches, stop_signal())
        was_finite &= result.read().first_bad_step == 0
        report.count(result)
        windows.append(report.meter.read())
        of_steps.append(phases())
        if result.totals.stop_signal:
            return Timed((), (), (), result.totals.stop_signal, was_finite)
    if len(windows) < wanted:
        raise too_few(len(windows), benching.all_steps, "a bench")
    warm_up = benching.warm_up
    return Timed(tuple(windows[:warm_up]), tuple(windows[warm_up:]), tuple(of_steps[warm_up:]), 0, was_finite)
