"""The training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sft_cli.data.loader import StepBatches
from sft_cli.errors import NonFiniteError
from sft_cli.train.report import Report
from sft_cli.train.step import Numbers, TrainStep


@dataclass(frozen=True)
class Run:
    """What `fit` works with; the worker puts it together."""

    steps: Iterable[StepBatches]
    train_step: TrainStep
    report: Report
    stop_signal: Callable[[], int]
    """The signal that this rank was told to stop with; 0 for none."""
    evaluate: Callable[[], tuple[float, int]] | None
    """Mean loss and supervised tokens of the held-out rows; None without any."""
    save: Callable[[StepBatches], None] | None
    evaluate_at_start: bool
    evaluate_every_steps: int | None
    save_every_steps: int
    log_every_steps: int
    updates_in_backward: bool = False
    """Whether a step has changed weights before it is known to be finite."""


def fit(run: Run) -> int:
    """Trains to the last step, or until a rank is told to stop.

    Returns:
        The signal that ended it early, after a checkpoint; 0 when it ran to its end.

    Raises:
        NonFiniteError: a step's loss or gradient was not finite; found at the next line that is logged or saved.
    """
    report = run.report
    if run.evaluate and run.evaluate_at_start:
        report.evaluation(0, *run.evaluate())
    for batches in report.waiting(run.steps):
        result = run.train_step(batches.step, batches.micro_batches, run.stop_signal(), batches.digest)
        report.count(result)
        is_stopped = result.totals.stop_signal != 0
        is_last = is_stopped or batches.is_last
        is_saved = run.save is not None and (is_last or batches.step % run.save_every_steps == 0)
        if is_saved or is_last or batches.step % run.log_every_steps == 0:
            numbers = result.read()
            _require_finite(numbers, run.updates_in_backward)
            report.log(batches, numbers)
        if run.evaluate and not is_stopped and (is_last or _is_due(batches.step, run.evaluate_every_steps)):
            with report.pause():
                evaluation = run.evaluate()
            report.evaluation(batches.step, *evaluation)
        if run.save and is_saved:
            with report.pause():
                run.save(batches)
        if is_stopped:
            return result.totals.stop_signal
    return 0


def _is_due(step: int, every_steps: int | None) -> bool:
    return every_steps is not None and step % every_steps == 0


def _require_finite(numbers: Numbers, updates_in_backward: bool) -> None:
    if numbers.first_bad_step:
        changed = (
            "That step had updated part of the weights before it was noticed (optimizer.in_backward)"
            if updates_in_backward
            else "That step updated nothing"
        )
        raise NonFiniteError(
            f"the loss or the gradient was not a finite number at step {numbers.first_bad_step} "
            f"(now: loss {numbers.loss:g}, gradient norm {numbers.grad_norm:g})",
            fix=f"Lower optimizer.learning_rate or lengthen schedule.warmup. {changed}, and nothing was saved after "
            "it; earlier checkpoints are whole.",
        )
