from __future__ import annotations

from typing import Any

import pytest
import torch

from sft_cli.data.loader import StepBatches
from sft_cli.errors import CheckpointError
from sft_cli.train.replay import EXACT, ROUNDED, Tolerance, replay
from sft_cli.train.step import StepResult, Totals

LOGGED = {step: {"loss": 1.0 / step, "grad_norm": 2.0, "batch_hash": f"{step:012x}"} for step in (3, 5)}


def replayed(
    tolerance: Tolerance = EXACT,
    *,
    loss: float = 1.0,
    grad_norm: float = 2.0,
    digest: int = 0,
    logged: Any = LOGGED,
    first_bad_step: int = 0,
) -> int:
    """Steps 3 to 5, of which 4 was not logged; the last one is as told."""

    def train_step(step: int, micro_batches: Any, stop_signal: int) -> StepResult:
        is_last = step == 5
        values = torch.tensor(
            [loss / step if is_last else 1 / step, grad_norm if is_last else 2.0], dtype=torch.float64
        )
        totals = Totals(1, 1, 1, 0, digest or step if is_last else step)
        return StepResult(totals, values[0], values[1], torch.tensor(first_bad_step * (step >= first_bad_step)))

    steps = [StepBatches(step, 0.1, ()) for step in (3, 4, 5)]
    return replay(steps, train_step, logged, tolerance)  # type: ignore[arg-type]


def test_the_same_numbers_pass() -> None:
    assert replayed() == 2


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"loss": 1 + 1e-12}, "loss 0.2 was logged"),
        ({"grad_norm": 2.5}, "grad_norm 2.0 was logged, 2.5 now"),
        ({"digest": 9}, "batch_hash 000000000005 was logged, 000000000009 now"),
        ({"loss": float("nan")}, "nan now"),
    ],
)
def test_the_first_difference_is_named(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(CheckpointError, match="from step 5 on") as caught:
        replayed(**changes)
    assert told in caught.value.what


def test_a_gpu_may_round() -> None:
    assert replayed(ROUNDED, loss=1.001, grad_norm=2.01) == 2
    with pytest.raises(CheckpointError):
        replayed(ROUNDED, loss=1.01)
    with pytest.raises(CheckpointError, match="other rows"):
        replayed(ROUNDED, digest=9)


def test_a_step_that_was_not_logged_was_a_number() -> None:
    # The step would be remembered, and the run end at its first line for a step that is none of its own.
    with pytest.raises(CheckpointError, match="from step 4 on: the loss or gradient is not finite now"):
        replayed(ROUNDED, first_bad_step=4)
    with pytest.raises(CheckpointError, match="from step 4 on"):
        replayed(ROUNDED, first_bad_step=4, logged={})


def test_a_loss_that_was_no_number_is_null_in_the_log() -> None:
    logged = {5: {**LOGGED[5], "loss": None}}
    assert replayed(loss=float("nan"), logged=logged) == 1
