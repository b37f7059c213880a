"""Steps that were logged once, taken again and compared: whether a resumed run is the run that was."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sft_cli.data.loader import StepBatches
from sft_cli.errors import CheckpointError
from sft_cli.train.report import batch_hash
from sft_cli.train.step import Numbers, TrainStep


@dataclass(frozen=True)
class Tolerance:
    """How far a number may be from the one that was logged, as a share of it."""

    loss: float
    grad_norm: float


EXACT = Tolerance(0.0, 0.0)
"""The same kernels on the same ranks of a CPU."""
ROUNDED = Tolerance(loss=5e-3, grad_norm=5e-2)
"""A GPU adds in another order each time; after some steps in bfloat16 that shows in the third digit."""


def replay(
    steps: Iterable[StepBatches], train_step: TrainStep, logged: Mapping[int, Mapping[str, Any]], tolerance: Tolerance
) -> int:
    """Takes the steps, which changes weights and optimizer: restore them afterwards. Called on every rank.

    Args:
        steps: those to be compared.
        logged: lines of metrics.jsonl by their step; a step without one (`log_every_steps`) is taken all the same, and
            has to be finite.

    Returns:
        How many steps were compared.

    Raises:
        CheckpointError: the first step that is not what it was, with all that differs.
    """
    compared = 0
    for batches in steps:
        result = train_step(batches.step, batches.micro_batches, stop_signal=0)
        numbers, line = result.read(), logged.get(batches.step)
        if line is None:
            # A run with such a step ends before its next line, and there is one.
            told = ["the loss or gradient is not finite now"] if numbers.first_bad_step else []
        else:
            compared += 1
            told = _differences(numbers, batch_hash(result.totals.digest), line, tolerance)
        if told:
            raise CheckpointError(
                f"the run is not what it was, from step {batches.step} on: {'; '.join(told)}",
                where="--verify",
                fix="Nothing was changed. Compare plan.json and kernels.json with those of the run that logged it.",
            )
    return compared


def _differences(numbers: Numbers, found: str, line: Mapping[str, Any], tolerance: Tolerance) -> list[str]:
    """
    Args:
        found: the hash of the step's global batch.
        line: what was logged of the step.
    """
    told = []
    if found != line.get("batch_hash"):
        told.append(f"batch_hash {line.get('batch_hash')} was logged, {found} now: these are other rows")
    for name, allowed in (("loss", tolerance.loss), ("grad_norm", tolerance.grad_norm)):
        now, then = getattr(numbers, name), line[name]
        if not _is_close(now, then, allowed):
            told.append(f"{name} {then} was logged, {now} now")
    return told


def _is_close(now: float, then: float | None, allowed: float) -> bool:
    if then is None or not math.isfinite(now):
        return then is None and not math.isfinite(now)
    return abs(now - then) <= allowed * abs(then)
