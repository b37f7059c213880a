"""The training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from sft_cli.data.loader import StepBatches
from sft_cli.errors import NonFiniteError
from sft_cli.train.best import Best
from sft_cli.train.report import Report
from sft_cli.train.step import Numbers, TrainStep

_SHOWN_ROWS = 40


@dataclass(frozen=True)
class Saves:
    """How checkpoints are written beside training."""

    save: Callable[[StepBatches, bool], None]
    """Returns when steps may be taken again. The second says whether the step's evaluation is left to be done."""
    mark_best: Callable[[int], None]
    """Makes the checkpoint of a step, which is complete, that of the best evaluation."""
    check: Callable[[], None]
    """Raises what went wrong with one that was being written; never waits."""
    finish: Callable[[], None]
    """Waits until nothing is being written."""


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
    saves: Saves | None
    rows_of_all_ranks: Callable[[Sequence[int]], Sequence[int]]
    """This rank's rows of a step -> those of all ranks; every rank must take part."""
    evaluate_at_start: bool
    evaluate_every_steps: int | None
    save_every_steps: int
    log_every_steps: int
    best: Best = field(default_factory=Best)
    keep_best: bool = False
    owed_evaluation: int | None = None
    """The step before the first one, where a stop came before its evaluation."""
    updates_in_backward: bool = False
    """Whether a step has changed weights before it is known to be finite."""


def fit(run: Run) -> int:
    """Trains to the last step, until evaluations get no better, or until a rank is told to stop.

    Returns:
        The signal that ended it early, after a checkpoint; 0 when it ran to its end.

    Raises:
        NonFiniteError: a step's loss or gradient was not finite; found at the next line that is logged or saved.
        CheckpointError: a checkpoint could not be written; found at the next step.
    """
    report = run.report
    if run.evaluate and run.evaluate_at_start:
        report.evaluation(0, *run.evaluate())
    if run.evaluate and run.owed_evaluation is not None:
        is_best = _evaluate(run, run.evaluate, run.owed_evaluation)
        if run.saves and is_best:
            run.saves.mark_best(run.owed_evaluation)
    if run.best.is_out_of_patience:
        report.say(f"no further steps: {run.best.evaluations_since} evaluations without a lower loss")
        return 0
    rows_of_steps: dict[int, list[int]] = {}
    for batches in report.waiting(run.steps):
        result = run.train_step(batches.step, batches.micro_batches, run.stop_signal(), batches.digest)
        report.count(result)
        if run.saves:
            run.saves.check()
        rows_of_steps[batches.step] = [row for batch in batches.micro_batches for row in batch.row_ids]
        is_stopped = result.totals.stop_signal != 0
        is_last = is_stopped or batches.is_last
        is_due = batches.is_last or _is_due(batches.step, run.evaluate_every_steps)
        is_evaluated = is_due and not is_stopped  # a stop can't wait for that; the run that is resumed does it
        owes_evaluation = is_due and is_stopped and run.evaluate is not None
        is_saved = is_last or batches.step % run.save_every_steps == 0
        if is_saved or is_evaluated or batches.step % run.log_every_steps == 0:
            numbers = result.read()
            if numbers.first_bad_step:
                rows = run.rows_of_all_ranks(rows_of_steps[numbers.first_bad_step])
                raise _not_finite(numbers, sorted(rows), run.updates_in_backward)
            rows_of_steps.clear()
            report.log(batches, numbers, result.totals.digest)
        if run.evaluate and is_evaluated:
            is_saved |= _evaluate(run, run.evaluate, batches.step)
            if run.best.is_out_of_patience and not is_last:
                report.say(f"ending early: {run.best.evaluations_since} evaluations without a lower loss")
                is_saved = is_last = True
        if run.saves and is_saved:
            with report.pause():
                run.saves.save(batches, owes_evaluation)
                if is_last:
                    run.saves.finish()
        if is_last:
            return result.totals.stop_signal
    return 0


def _evaluate(run: Run, evaluate: Callable[[], tuple[float, int]], step: int) -> bool:
    """Whether it is a new best whose checkpoint is kept."""
    with run.report.pause():
        loss, supervised_tokens = evaluate()
    run.report.evaluation(step, loss, supervised_tokens)
    return run.best.see(step, loss) and run.keep_best


def _is_due(step: int, every_steps: int | None) -> bool:
    return every_steps is not None and step % every_steps == 0


def _not_finite(numbers: Numbers, rows: Sequence[int], updates_in_backward: bool) -> NonFiniteError:
    shown = ", ".join(map(str, rows[:_SHOWN_ROWS])) + (", ..." if len(rows) > _SHOWN_ROWS else "")
    changed = (
        "That step had updated part of the weights before it was noticed (optimizer.in_backward)"
        if updates_in_backward
        else "That step updated nothing"
    )
    return NonFiniteError(
        f"the loss or the gradient was not a finite number at step {numbers.first_bad_step} "
        f"(now: loss {numbers.loss:g}, gradient norm {numbers.grad_norm:g}); its batch held {len(rows)} rows of the "
        f"tokenised data, counted from 0: {shown}",
        fix=f"Lower optimizer.learning_rate or lengthen schedule.warmup. {changed}, and nothing was saved after it; "
        "earlier checkpoints are whole.",
    )
