from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from sft_cli.data.loader import StepBatches
from sft_cli.errors import CheckpointError, NonFiniteError
from sft_cli.train.best import Best
from sft_cli.train.loop import Run, Saves, fit
from sft_cli.train.step import Numbers, StepResult, Totals


@dataclass
class Diary:
    """Writes down what the loop does."""

    events: list[str] = field(default_factory=list)

    def waiting(self, steps: Iterable[StepBatches]) -> Iterator[StepBatches]:
        yield from steps

    def count(self, result: StepResult) -> None:
        self.events.append("step")

    def say(self, message: str) -> None:
        self.events.append(f"say {message}")

    def log(self, batches: StepBatches, numbers: Numbers, digest: int) -> None:
        self.events.append(f"log {batches.step}")

    def evaluation(self, step: int, loss: float, supervised_tokens: int) -> None:
        self.events.append(f"eval {step}")

    def pause(self) -> Any:
        return nullcontext()


def make_run(steps: int = 4, **changes: Any) -> tuple[Run, Diary]:
    diary = Diary()

    def train_step(step: int, micro_batches: Any, stop_signal: int, digest: int) -> StepResult:
        return StepResult(Totals(1, 1, 1, stop_signal), torch.tensor(1.0), torch.tensor(1.0), torch.tensor(0))

    def save(batches: StepBatches, owes_evaluation: bool) -> None:
        diary.events.append(f"save {batches.step}" + ", to be evaluated" * owes_evaluation)

    run = Run(
        steps=[StepBatches(step, step / steps, (), is_last=step == steps) for step in range(1, steps + 1)],
        train_step=train_step,  # type: ignore[arg-type]
        report=diary,  # type: ignore[arg-type]
        stop_signal=lambda: 0,
        evaluate=lambda: (2.0, 10),
        saves=Saves(
            save,
            mark_best=lambda step: diary.events.append(f"best {step}"),
            check=lambda: None,
            finish=lambda: diary.events.append("wait"),
        ),
        rows_of_all_ranks=lambda rows: rows,
        evaluate_at_start=False,
        evaluate_every_steps=None,
        save_every_steps=100,
        log_every_steps=1,
    )
    return replace(run, **changes), diary


def events(**changes: Any) -> list[str]:
    run, diary = make_run(**changes)
    assert fit(run) == 0
    return [event for event in diary.events if event != "step"]


def test_the_last_step_is_logged_evaluated_and_saved() -> None:
    assert events(log_every_steps=10) == ["log 4", "eval 4", "save 4", "wait"]


def test_cadences() -> None:
    assert events(evaluate_at_start=True, evaluate_every_steps=2, save_every_steps=3, log_every_steps=2) == [
        "eval 0",
        "log 2",
        "eval 2",
        "log 3",
        "save 3",
        "log 4",
        "eval 4",
        "save 4",
        "wait",
    ]


def test_without_held_out_rows_or_checkpoints() -> None:
    assert events(evaluate=None, saves=None, log_every_steps=4) == ["log 4"]


def test_a_stop_ends_the_step_saves_and_does_not_evaluate() -> None:
    signals: Callable[[], int] = iter([0, 15, 0, 0]).__next__
    run, diary = make_run(stop_signal=signals, log_every_steps=100)
    assert fit(run) == 15
    assert diary.events == ["step", "step", "log 2", "save 2", "wait"]


@pytest.mark.parametrize(("changes", "owed"), [({"evaluate_every_steps": 2}, True), ({"steps": 2}, True),
                                             ({"steps": 2, "evaluate": None}, False)])  # fmt: skip
def test_a_stop_on_a_step_to_be_evaluated_leaves_that_to_the_run_that_goes_on(
    changes: dict[str, Any], owed: bool
) -> None:
    run, diary = make_run(stop_signal=iter([0, 15]).__next__, log_every_steps=100, **changes)
    assert fit(run) == 15
    assert diary.events == ["step", "step", "log 2", "save 2" + ", to be evaluated" * owed, "wait"]


def test_what_a_stop_has_left_is_evaluated_first() -> None:
    losses = iter([2.0, 3.0])
    best = Best(loss=2.5, step=1)
    changes = {"evaluate": lambda: (next(losses), 10), "owed_evaluation": 2, "best": best}
    assert events(keep_best=True, log_every_steps=4, **changes) == [
        "eval 2", "best 2", "log 4", "eval 4", "save 4", "wait"
    ]  # fmt: skip
    assert (best.loss, best.step) == (2.0, 2)


def test_what_a_stop_has_left_may_be_the_last_evaluation() -> None:
    patience_over = {"owed_evaluation": 2, "best": Best(patience=2, loss=1.0, step=1, evaluations_since=1)}
    assert events(**patience_over) == ["eval 2", "say no further steps: 2 evaluations without a lower loss"]
    assert events(owed_evaluation=4, steps=0) == ["eval 4"]


def test_nothing_is_saved_after_a_step_that_was_not_finite() -> None:
    """Found at the next line that is logged or saved, and named by the step that it began with."""

    def broken(step: int, micro_batches: Any, stop_signal: int, digest: int) -> StepResult:
        return StepResult(Totals(1, 1, 1, 0), torch.tensor(1.0), torch.tensor(1.0), torch.tensor(2 if step > 1 else 0))

    run, diary = make_run(train_step=broken, log_every_steps=3, save_every_steps=3)
    steps = [StepBatches(step, 0.1, (Rows((step, 10 * step)), Rows((7,)))) for step in (1, 2, 3)]  # type: ignore[arg-type]
    with pytest.raises(NonFiniteError, match=r"at step 2 .* held 3 rows of the tokenised data.*: 2, 7, 20") as ended:
        fit(replace(run, steps=steps))
    assert "That step updated nothing" in (ended.value.fix or "")
    assert diary.events == ["step", "step", "step"]


@dataclass
class Rows:
    """Stands for a micro-batch."""

    row_ids: tuple[int, ...]


def test_a_new_best_is_saved_and_patience_ends_the_run() -> None:
    losses = iter([3.0, 2.0, 2.5, 2.0])
    run, diary = make_run(
        steps=9,
        evaluate=lambda: (next(losses), 10),
        evaluate_every_steps=1,
        best=Best(patience=2),
        keep_best=True,
        log_every_steps=9,
    )
    assert fit(run) == 0
    told = [event for event in diary.events if event.split()[0] in ("save", "say", "wait")]
    assert told == ["save 1", "save 2", "say ending early: 2 evaluations without a lower loss", "save 4", "wait"]
    assert (run.best.loss, run.best.step) == (2.0, 2)
    assert fit(run) == 0
    assert next(losses, None) is None, "a run that had ended early is not gone on with"


def test_an_error_of_a_save_surfaces_at_the_next_step() -> None:
    def check() -> None:
        raise CheckpointError("the disk is full")

    run, diary = make_run()
    with pytest.raises(CheckpointError):
        fit(replace(run, saves=Saves(lambda *step: None, lambda step: None, check, lambda: None)))
    assert diary.events == ["step"]


def test_an_update_in_backward_is_not_said_to_have_changed_nothing() -> None:
    def broken(step: int, micro_batches: Any, stop_signal: int, digest: int) -> StepResult:
        return StepResult(Totals(1, 1, 1, 0), torch.tensor(1.0), torch.tensor(1.0), torch.tensor(1))

    run, _ = make_run(train_step=broken, updates_in_backward=True)
    with pytest.raises(NonFiniteError) as ended:
        fit(run)
    assert "updated part of the weights before it was noticed" in (ended.value.fix or "")
