"""Plans and profiles of traces written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.traces import Events, gpu_step

from sft_cli.plan.hardware import Hardware
from sft_cli.plan.model_facts import find_model
from sft_cli.plan.plan import Plan
from sft_cli.plan.profiling import Profiling
from sft_cli.plan.resolve import resolve
from sft_cli.recipe.schema import Recipe
from sft_cli.telemetry.profile.facts import Facts
from sft_cli.telemetry.profile.summary import Summary, locate, summarise

FUSED = {"linear_attention": "flash_qla", "conv": "causal_conv1d", "norm": "liger", "gated_norm": "fla"}
FACTS = Facts(
    tokens=6_144,
    slots=8_192,
    supervised_tokens=4_096,
    unprofiled_step_seconds=0.0009,
    model_flops_utilization=0.3,
    peak_memory_gib=12.5,
    gemm_tflops=740.0,
)


@pytest.fixture
def plan_of() -> Callable[..., Plan]:
    """Of the 27B's shapes on an H200; keywords are sections of the recipe, and `kernels` replaces fused ones, which are
    not installed where tests run."""

    def make(path: str = "builtin:qwen3.8-27b", kernels: dict[str, str] | None = None, **sections: Any) -> Plan:
        slow = dict.fromkeys(FUSED, "torch")  # asked for, so that nothing is `auto`
        recipe = Recipe(model={"path": path}, data={"train": "builtin:chat"}, kernels=slow, **sections)
        plan = resolve(recipe, Hardware(1, "NVIDIA H200", 140.4), find_model(recipe.model), None)
        words = plan.recipe.kernels.model_copy(update={**FUSED, "loss": "chunked", **(kernels or {})})
        recipe = plan.recipe.model_copy(update={"kernels": words})
        return plan.model_copy(update={"recipe": recipe, "profiling": Profiling(steps=1)})

    return make


@pytest.fixture
def summary_of() -> Callable[..., Summary]:
    """Of a trace, by default `gpu_step`; keywords replace facts of the run."""

    def make(events: Events | None = None, **facts: Any) -> Summary:
        trace = (gpu_step() if events is None else events).trace()
        return summarise(trace, locate(trace), replace(FACTS, **facts))

    return make
