"""bfloat16 masters that don't move are told with their number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sft_cli.plan.plan import Plan
from sft_cli.plan.rounding import largest_that_moves, share_above

MakePlan = Callable[..., Plan]
BFLOAT16 = {"path": "builtin:tiny-hybrid", "master_dtype": "bfloat16"}


@pytest.mark.parametrize("learning_rate", [1e-6, 1e-5, 3e-5, 2e-4, 1.5e-3])
def test_the_largest_that_moves_is_that_of_torch(learning_rate: float) -> None:
    edge = largest_that_moves(learning_rate)
    for size, moves in ((edge * 0.99, True), (edge, False), (edge * 1.5, False)):
        weight = torch.tensor(size).bfloat16()
        assert ((weight.float() + learning_rate).bfloat16() != weight) == moves


def test_the_share_is_that_of_a_normal_distribution() -> None:
    weights = torch.randn(100_000, generator=torch.Generator().manual_seed(0)) * 0.02
    assert share_above(0.004, 0.02) == pytest.approx((weights.abs() > 0.004).float().mean().item(), abs=0.01)


def test_bfloat16_masters_are_warned_of_with_the_share_that_stands_still(make_plan: MakePlan) -> None:
    plan = make_plan(model=BFLOAT16, optimizer={"learning_rate": 1e-5})
    (choice,) = [choice for choice in plan.choices if choice.key == "model.master_dtype"]
    assert choice.value == "bfloat16"
    assert "WARNING" in choice.because
    assert "95% of weights spread by 0.06 do not move" in choice.because
    assert "stochastic_rounding: true" in choice.because


@pytest.mark.parametrize(
    "changes", [{}, {"model": BFLOAT16, "optimizer": {"stochastic_rounding": True}}], ids=["float32", "stochastic"]
)
def test_sound_pairs_are_not(make_plan: MakePlan, changes: dict[str, object]) -> None:
    assert "model.master_dtype" not in [choice.key for choice in make_plan(**changes).choices]
