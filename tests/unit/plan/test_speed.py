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


@pytest.mark.parametrize(
    ("kernels", "slowest", "fastest"),
    [({"linear_attention": "fla"}, 2174, 2679), ({"linear_attention": "flash_qla"}, 2570, 2817)],
)
def test_the_speed_that_was_measured_is_found_again(
    make_plan: MakePlan, kernels: dict[str, str], slowest: int, fastest: int
) -> None:
    """Field notes, 33.8% and 41.6% of 989 TFLOP/s with rows as UltraChat's; and docs/performance.md."""
    plan = with_steps(make_plan(hardware=H200, kernels=kernels, **BIG), 10, row_tokens=1491)
    at_least, at_most = estimate_speed(plan).tokens_per_second
    assert at_least == pytest.approx(slowest, rel=0.02)
    assert at_most == pytest.approx(fastest, rel=0.02)


def test_layers_that_are_recomputed_otherwise_are_another_speed(make_plan: MakePlan) -> None:
    """3,582 tokens a second were measured so."""
    mixed = {"mode": "full", "layers": 7, "others": "selective"}
    plan = make_plan(hardware=H200, sharding={"activation_checkpointing": mixed}, **BIG)
    at_least, at_most = estimate_speed(with_steps(plan, 10, row_tokens=1491)).tokens_per_second
    assert at_least is not None
    assert at_most is not None
    assert at_least < 3582 < at_most


def test_a_model_without_a_delta_rule_has_a_speed_too(make_plan: MakePlan) -> None:
    """docs/performance.md: 12,680 tokens a second. What stands in a slot that it has no layer for says nothing."""
    sections = {"model": {"path": "builtin:llama-3.1-8b"}, "sharding": {"activation_checkpointing": {"mode": "none"}}}
    plan = with_steps(make_plan(hardware=H200, **sections), 10, row_tokens=1491)
    at_least, at_most = estimate_speed(plan).tokens_per_second
    assert at_least is not None
    assert at_most is not None
    assert at_least < 12680 < at_most


def test_hours_are_steps_over_speed(make_plan: MakePlan) -> None:
    plan = with_steps(make_plan(hardware=H200, **BIG), 1000)
    speed = estimate_speed(plan)
    (slow, fast), (least, most) = speed.tokens_per_second, speed.hours
    tokens = 1000 * plan.tokens_per_step
    assert (least, most) == pytest.approx((tokens / fast / 3600, tokens / slow / 3600))
    assert estimate_speed(make_plan(hardware=H200, **BIG)).hours == (None, None)


def test_of_more_gpus_than_were_measured_only_the_upper_bound_is_known(make_plan: MakePlan) -> None:
    sections = {"model": {"path": "builtin:qwen3.5-9b"}, "sharding": {"activation_checkpointing": {"mode": "none"}}}
    two, eight = (estimate_speed(make_plan(hardware=H200, ranks=ranks, **sections)) for ranks in (2, 8))
    assert two.tokens_per_second[0] is not None
    assert "communication" not in two.because
    assert eight.tokens_per_second == (None, pytest.approx(4 * two.tokens_per_second[1]))
    assert "times 4, and what communication costs is not known" in eight.because
    assert estimate_speed(with_steps(make_plan(hardware=H200, ranks=8, **sections), 9)).hours[1] is None


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"path": "builtin:qwen3.5-9b"}},  # all of its layers checkpointed
        {**BIG, "batching": {"tokens": 4096}},
        {**BIG, "batching": {"mode": "padding"}},
        {**BIG, "sharding": {"activation_checkpointing": {"mode": "none"}}},
        {**BIG, "sharding": {"activation_checkpointing": {"layers": 8}}},
        {"model": {"path": "builtin:qwen3.8-27b", "dtype": "float32"}},
        {
            "model": {"path": "builtin:llama-3.1-8b"},
            "sharding": {"activation_checkpointing": {"mode": "none"}},
            "kernels": {"attention": "sdpa"},
        },
    ],
)
def test_what_was_not_measured_is_not_known(make_plan: MakePlan, sections: dict[str, Any]) -> None:
    speed = estimate_speed(make_plan(hardware=H200, **sections))
    assert speed.tokens_per_second == speed.hours == (None, None)
    assert "no speed was measured" in speed.because


def test_no_gpu_no_speed(make_plan: MakePlan) -> None:
    assert estimate_speed(make_plan(**BIG)).tokens_per_second == (None, None)
