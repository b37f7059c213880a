from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from sft_cli.data.loader import StepBatches
from sft_cli.errors import NonFiniteError
from sft_cli.train.loop import Run, fit
from sft_cli.train.step import Numbers, StepResult, Totals


@dataclass
class Diary:
    """Writes down what the loop does."""

    events: list[str] = field(default_factory=list)

    def waiting(self, steps: Iterable[StepBatches]) -> Iterator[StepBatches]:
        yield from steps

    def count(self, result: StepResult) -> None:
        self.events.append("step")

    def log(self, batches: StepBatches, numbers: Numbers) -> None:
        self.events.append(f"log {batches.step}")

    def evaluation(self, step: int, loss: float, supervised_tokens: int) -> None:
        self.events.append(f"eval {step}")

    def pause(self) -> Any:
        return nullcontext()


def make_run(steps: int = 4, **changes: Any) -> tuple[Run, Diary]:
    diary = Diary()

    def train_step(step: int, micro_batches: Any, stop_signal: int, digest: int) -> StepResult:
        return StepResult(Totals(1, 1, 1, stop_signal), torch.tensor(1.0), torch.tensor(1.0), torch.tensor(0))

    def save(batches: StepBatches) -> None:
        diary.events.append(f"save {batches.step}")

    run = Run(
        steps=[StepBatches(step, step / steps, (), is_last=step == steps) for step in range(1, steps + 1)],
        train_step=train_step,  # type: ignore[arg-type]
        report=diary,  # type: ignore[arg-type]
        stop_signal=lambda: 0,
        evaluate=lambda: (2.0, 10),
        save=save,
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
    assert events(log_every_steps=10) == ["log 4", "eval 4", "save 4"]


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
    ]


def test_without_held_out_rows_or_checkpoints() -> None:
    assert events(evaluate=None, save=None, log_every_steps=4) == ["log 4"]


def test_a_stop_ends_the_step_saves_and_does_not_evaluate() -> None:
    signals: Callable[[], int] = iter([0, 15, 0, 0]).__next__
    run, diary = make_run(stop_signal=signals, log_every_steps=100)
    assert fit(run) == 15
    assert diary.events == ["step", "step", "log 2", "save 2"]


def test_nothing_is_saved_after_a_step_that_was_not_finite() -> None:
    """Found at the next line that is logged or saved, and named by the step that it began with."""

    def broken(step: int, micro_batches: Any, stop_signal: int, digest: int) -> StepResult:
        return StepResult(Totals(1, 1, 1, 0), torch.tensor(1.0), torch.tensor(1.0), torch.tensor(2 if step > 1 else 0))

    run, diary = make_run(train_step=broken, log_every_steps=3, save_every_steps=3)
    with pytest.raises(NonFiniteError, match="at step 2") as ended:
        fit(run)
    assert "That step updated nothing" in (ended.value.fix or "")
    assert diary.events == ["step", "step", "step"]


def test_an_update_in_backward_is_not_said_to_have_changed_nothing() -> None:
    def broken(step: int, micro_batches: Any, stop_signal: int, digest: int) -> StepResult:
        return StepResult(Totals(1, 1, 1, 0), torch.tensor(1.0), torch.tensor(1.0), torch.tensor(1))

    run, _ = make_run(train_step=broken, updates_in_backward=True)
    with pytest.raises(NonFiniteError) as ended:
        fit(run)
    assert "updated part of the weights before it was noticed" in (ended.value.fix or "")
