from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sft_cli.plan.hardware import Hardware
from sft_cli.plan.plan import Plan
from sft_cli.plan.resolve import with_steps
from sft_cli.plan.speed import estimate_speed

MakePlan = Callable[..., Plan]
H200 = Hardware(0, "NVIDIA H200", 140.4, named=True, packages={"fla-core": "0.6.0"})
BIG = {"model": {"path": "builtin:qwen3.8-27b"}}


def test_the_speed_that_was_measured_is_found_again(make_plan: MakePlan) -> None:
    """Field notes: 2,174 to 2,679 real tokens a second, 33.8% and 41.6% of 989 TFLOP/s, rows as UltraChat's."""
    plan = with_steps(make_plan(hardware=H200, **BIG), 10, row_tokens=1500)
    at_least, at_most = estimate_speed(plan).tokens_per_second
    assert at_least == pytest.approx(2174, rel=0.02)
    assert at_most == pytest.approx(2679, rel=0.02)


def test_hours_are_steps_over_speed(make_plan: MakePlan) -> None:
    plan = with_steps(make_plan(hardware=H200, **BIG), 1000)
    speed = estimate_speed(plan)
    (slow, fast), (least, most) = speed.tokens_per_second, speed.hours
    tokens = 1000 * plan.tokens_per_step
    assert (least, most) == pytest.approx((tokens / fast / 3600, tokens / slow / 3600))
    assert estimate_speed(make_plan(hardware=H200, **BIG)).hours == (None, None)


def test_of_several_gpus_only_the_upper_bound_is_known(make_plan: MakePlan) -> None:
    one, eight = (estimate_speed(make_plan(hardware=H200, ranks=ranks, **BIG)) for ranks in (1, 8))
    assert eight.tokens_per_second == (None, pytest.approx(8 * one.tokens_per_second[1]))
    assert "communication" in eight.because
    assert estimate_speed(with_steps(make_plan(hardware=H200, ranks=8, **BIG), 9)).hours[1] is None


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"path": "builtin:qwen3.5-9b"}},
        {**BIG, "batching": {"tokens": 4096}},
        {**BIG, "batching": {"mode": "padding"}},
        {**BIG, "sharding": {"activation_checkpointing": {"mode": "none"}}},
        {**BIG, "sharding": {"activation_checkpointing": {"layers": 8}}},
        {"model": {"path": "builtin:qwen3.8-27b", "dtype": "float32"}},
    ],
)
def test_what_was_not_measured_is_not_known(make_plan: MakePlan, sections: dict[str, Any]) -> None:
    speed = estimate_speed(make_plan(hardware=H200, **sections))
    assert speed.tokens_per_second == speed.hours == (None, None)
    assert "no speed was measured" in speed.because


def test_no_gpu_no_speed(make_plan: MakePlan) -> None:
    assert estimate_speed(make_plan(**BIG)).tokens_per_second == (None, None)
