"""`auto` takes the least recomputation that fits, and offloading says what it takes on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sft_cli.plan.activations import kept_bytes_per_token
from sft_cli.plan.checkpointing import MARGIN
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.memory import GIB, estimate_memory, fits
from sft_cli.plan.plan import Plan

MakePlan = Callable[..., Plan]
KEY = "sharding.activation_checkpointing.layers"


def sharding(**keys: Any) -> dict[str, Any]:
    return {"activation_checkpointing": keys}


def planned(
    make_plan: MakePlan, gib: float | None, gpus: int = 8, model: str = "builtin:qwen3.5-9b", **keys: Any
) -> tuple[Plan, Any, str]:
    """The plan, its number of layers, and why."""
    hardware = Hardware(gpus, "NVIDIA H200", gib, packages={"fla-core": "0.6.0"})
    plan = make_plan(hardware, model={"path": model}, sharding=sharding(**keys))
    (choice,) = [choice for choice in plan.choices if choice.key == KEY]
    assert plan.recipe.sharding.activation_checkpointing.layers == choice.value
    return plan, choice.value, choice.because


def with_layers(plan: Plan, layers: int) -> float:
    """Estimated GiB of the same plan with another number of layers."""
    checkpointing = plan.recipe.sharding.activation_checkpointing.model_copy(update={"layers": layers})
    section = plan.recipe.sharding.model_copy(update={"activation_checkpointing": checkpointing})
    recipe = plan.recipe.model_copy(update={"sharding": section})
    return estimate_memory(recipe, plan.model.architecture(), ranks=plan.world.ranks, device="cuda").total


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.parametrize("gib", [30.0, 45.0, 60.0, 75.0])
def test_the_fewest_that_fit(make_plan: MakePlan, gib: float, mode: str, offload: bool) -> None:
    plan, layers, because = planned(make_plan, gib, mode=mode, layers="auto", offload=offload)
    every = plan.model.architecture().layers
    fitting = [layers for layers in range(every + 1) if fits(with_layers(plan, layers) * (1 + MARGIN), gib)]
    assert layers == (fitting[0] if fitting and fitting[0] < every else "all")
    assert f"{plan.memory_gib.total:.1f} GiB" in because
    assert ("does not fit" in because) == (not fitting)


def test_some_but_not_all_layers_where_memory_is_between(make_plan: MakePlan) -> None:
    plan, layers, because = planned(make_plan, 50.0, mode="full", layers="auto")
    assert 0 < layers < 32
    assert f"full on {layers} of 32 layers, none on the others" in because
    assert f"one layer less would be {with_layers(plan, layers - 1):.1f}" in because


def test_none_where_all_fits_without(make_plan: MakePlan) -> None:
    assert planned(make_plan, 1000.0, mode="full", layers="auto")[1] == 0


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("mode", ["full", "selective"])
def test_more_layers_take_no_more_but_for_the_last(make_plan: MakePlan, mode: str, offload: bool) -> None:
    plan, *_ = planned(make_plan, 50.0, mode=mode, layers="auto", offload=offload)
    totals = [with_layers(plan, layers) for layers in range(32)]
    assert totals == sorted(totals, reverse=True)


def test_all_on_a_cpu_and_without_a_known_memory(make_plan: MakePlan) -> None:
    for hardware in (Hardware(0, None, None), Hardware(1, "a GPU", None, packages={"fla-core": "0.6.0"})):
        plan = make_plan(hardware, sharding=sharding(layers="auto"))
        assert plan.recipe.sharding.activation_checkpointing.layers == "all"
        assert any(choice.key == KEY and choice.because for choice in plan.choices)


def test_mode_none_needs_no_layers(make_plan: MakePlan) -> None:
    _, layers, because = planned(make_plan, 10.0, mode="none", layers="auto")
    assert (layers, "mode: none" in because) == ("all", True)


def test_offloading_says_what_the_host_holds(make_plan: MakePlan) -> None:
    plan = make_plan(model={"path": "builtin:qwen3.5-9b"}, sharding=sharding(mode="full", offload=True))
    (choice,) = [choice for choice in plan.choices if choice.key == "sharding.activation_checkpointing.offload"]
    # Inputs of all layers but the last, 8,192 slots of 4,096 numbers in bfloat16.
    assert f"{31 * 8192 * 4096 * 2 / GIB:,.1f} GiB" in choice.because


def test_what_modes_keep_for_27b(make_plan: MakePlan) -> None:
    """The table of docs/activation-checkpointing.md."""
    plan = make_plan(
        Hardware(1, "NVIDIA H200", 140.4, packages={"fla-core": "0.6.0", "liger-kernel": "0.8.5"}),
        model={"path": "builtin:qwen3.8-27b"},
    )
    section, kernels = plan.recipe.sharding.activation_checkpointing, plan.recipe.kernels
    found = {
        mode: [
            round(kept / 1000)
            for kept in kept_bytes_per_token(
                plan.model.architecture(), section.model_copy(update={"mode": mode}), 2, kernels
            )[2:4]
        ]
        for mode in ("none", "selective", "full")
    }
    assert found == {"none": [230, 225], "selective": [162, 131], "full": [10, 10]}
