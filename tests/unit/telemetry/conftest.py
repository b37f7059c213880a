"""Records of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sft_cli.telemetry.meter import Window
from sft_cli.telemetry.records import StepRecord

WINDOW = Window(
    steps=1,
    tokens=900,
    supervised_tokens=400,
    slots=1024,
    step_seconds=0.5,
    data_wait_seconds=0.01,
    tokens_per_second=1800.0,
    mfu=None,
    peak_memory_gib=0.75,
)


@pytest.fixture
def make_step() -> Callable[..., StepRecord]:
    """A training step; a second argument is its loss, keywords replace fields."""

    def make(step: int, loss: float = 2.5, **fields: Any) -> StepRecord:
        given = {"epoch": 0.25, "grad_norm": 1.5, "learning_rate": 3e-3, "window": WINDOW, **fields}
        return StepRecord(step=step, loss=loss, **given)

    return make
