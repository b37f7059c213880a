"""`auto` takes the least recomputation that fits, and offloading says what it takes on the host."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sft_cli.plan.activations import kept_bytes_per_token
from sft_cli.plan.checkpointing import MARGIN, MEASURED_MARGIN, chain, margin_of
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.memory import GIB, estimate_memory, fits
from sft_cli.plan.plan import Plan
from sft_cli.plan.shapes import read_shape
from sft_cli.recipe.schema import ActivationCheckpointingSection

MakePlan = Callable[..., Plan]
SECTION = "sharding.activation_checkpointing"
KEY = f"{SECTION}.layers"
H200 = Hardware(1, "NVIDIA H200", 139.8, packages={"fla-core": "0.6.0", "liger-kernel": "0.8.5"})


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


def margin(plan: Plan) -> float:
    return margin_of(plan.recipe, plan.model.architecture())


def with_layers(plan: Plan, layers: int) -> float:
    """Estimated GiB of the same plan with another number of layers."""
    return total_with(plan, plan.recipe.sharding.activation_checkpointing.model_copy(update={"layers": layers}))


def total_with(plan: Plan, checkpointing: ActivationCheckpointingSection) -> float:
    section = plan.recipe.sharding.model_copy(update={"activation_checkpointing": checkpointing})
    recipe = plan.recipe.model_copy(update={"sharding": section})
    return estimate_memory(recipe, plan.model.architecture(), ranks=plan.world.ranks, device="cuda").total


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.parametrize("gib", [30.0, 45.0, 60.0, 75.0])
def test_the_fewest_that_fit(make_plan: MakePlan, gib: float, mode: str, offload: bool) -> None:
    plan, layers, because = planned(make_plan, gib, mode=mode, layers="auto", offload=offload)
    every = plan.model.architecture().layers
    fitting = [layers for layers in range(every + 1) if fits(with_layers(plan, layers) * (1 + margin(plan)), gib)]
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
        for keys, key in (({"layers": "auto"}, KEY), ({"mode": "auto"}, f"{SECTION}.mode")):
            plan = make_plan(hardware, sharding=sharding(**keys))
            assert plan.recipe.sharding.activation_checkpointing == ActivationCheckpointingSection()
            (choice,) = [choice for choice in plan.choices if choice.key.startswith(SECTION)]
            assert choice.key == key
            assert "there is no GPU" in choice.because or "memory is not known" in choice.because


MODELS = ["builtin:qwen3.5-0.8b", "builtin:qwen3.5-9b", "builtin:qwen3.8-27b", "builtin:llama-3.1-8b", "sparse"]
SPARSE = {
    **read_shape("qwen3.5-4b"),
    "model_type": "qwen3_5_moe_text",
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
UPDATES: dict[str, dict[str, Any]] = {
    "at the end": {},
    "in backward": {
        "model": {"master_dtype": "bfloat16"},
        "optimizer": {"name": "adamw_8bit", "in_backward": True},
        "train": {"max_grad_norm": None, "tokens_per_step": 1},
    },
}
"""Without the first, activations make the peak; gradients that wait may make it elsewhere."""


@pytest.mark.parametrize("tokens", [2048, 32768])
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("model", MODELS)
def test_less_recomputation_takes_no_less_memory(
    make_plan: MakePlan, tmp_path: Path, model: str, update: str, tokens: int
) -> None:
    """Along the chain of `mode: auto`, but for its first step: a search by halves rests on it."""
    if model == "sparse":
        model = str(tmp_path / "config.json")
        Path(model).write_text(json.dumps(SPARSE), encoding="utf-8")
    sections = {
        **UPDATES[update],
        "model": {"path": model, "weights": "random", **UPDATES[update].get("model", {})},
        "batching": {"tokens": tokens},
    }
    plan = make_plan(H200, **sections, sharding=sharding(mode="auto"))
    layers = plan.model.architecture().layers
    links = chain(ActivationCheckpointingSection(mode="auto"), layers)
    assert len(links) == 2 * layers + 1
    totals = [total_with(plan, link) for link in links]
    assert totals[1:] == sorted(totals[1:])
    fitting = [link for link, total in zip(links, totals, strict=True) if fits(total * (1 + margin(plan)), 139.8)]
    assert plan.recipe.sharding.activation_checkpointing == (fitting[-1] if fitting else links[0])


def test_the_chain_goes_layer_by_layer_from_full_to_none() -> None:
    links = chain(ActivationCheckpointingSection(mode="auto"), 2)
    assert [link.of_layers(2) for link in links] == [
        ["full", "full"], ["full", "selective"], ["selective", "selective"], ["selective", "none"], ["none", "none"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gib", "words"),
    [
        (80.0, "even so an estimate of"),
        (139.8, "full on 43 of 64 layers, selective on the others: an estimate of 132.3 GiB, with 4% on top of it"),
        (186.3, "selective on all 64 layers"),
        (220.0, "selective on 13 of 64 layers, none on the others"),
        (300.0, "none on all 64 layers"),
    ],
)
def test_auto_says_what_it_took_and_what_one_layer_less_would_be(make_plan: MakePlan, gib: float, words: str) -> None:
    """Qwen3.8-27B on one GPU of several sizes."""
    sections = {**UPDATES["in backward"], "model": {"path": "builtin:qwen3.8-27b", "master_dtype": "bfloat16"}}
    hardware = replace(H200, gpu_memory_gib=gib)
    plan = make_plan(hardware, **sections, sharding={"backend": "none", **sharding(mode="auto")})
    reasons = {choice.key.rpartition(".")[2]: choice for choice in plan.choices if "checkpointing" in choice.key}
    section, because = plan.recipe.sharding.activation_checkpointing, reasons["mode"].because
    assert because.startswith(words)
    assert ("one layer less would be" in because) == (gib not in (80.0, 300.0))
    for key in ("layers", "others"):
        assert (key in reasons) == (getattr(section, key) != getattr(ActivationCheckpointingSection(), key))


def test_the_margin_is_small_where_memory_was_measured(make_plan: MakePlan, tmp_path: Path) -> None:
    experts = tmp_path / "config.json"
    experts.write_text(json.dumps(SPARSE), encoding="utf-8")
    alone = {"backend": "none"}
    models = {"builtin:qwen3.5-9b": MEASURED_MARGIN, "builtin:llama-3.1-8b": MARGIN, str(experts): MARGIN}
    for model, expected in models.items():
        plan = make_plan(H200, model={"path": model, "weights": "random"}, sharding=alone)
        assert margin(plan) == expected
    assert margin(make_plan(H200, model={"path": "builtin:qwen3.5-9b"})) == MARGIN


def test_auto_does_not_send_over_the_bus_what_is_faster_computed_again(make_plan: MakePlan) -> None:
    plan = make_plan(H200, sharding=sharding(mode="auto", offload=True))
    assert plan.recipe.sharding.activation_checkpointing == ActivationCheckpointingSection(mode="full", offload=True)
    assert any("over the bus" in choice.because for choice in plan.choices)


def test_others_selective_with_the_fewest_layers_in_full(make_plan: MakePlan) -> None:
    plan, layers, because = planned(make_plan, 42.0, mode="full", layers="auto", others="selective")
    assert 0 < layers < 32
    assert f"full on {layers} of 32 layers, selective on the others" in because
    assert fits(with_layers(plan, layers) * (1 + margin(plan)), 42.0)
    assert not fits(with_layers(plan, layers - 1) * (1 + margin(plan)), 42.0)
    plan, layers, _ = planned(make_plan, 10.0, mode="full", layers="auto", others="selective")
    assert (layers, plan.recipe.sharding.activation_checkpointing.others) == ("all", "none")


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
    assert found == {"none": [230, 225], "selective": [150, 131], "full": [10, 10]}
