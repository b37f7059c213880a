from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import ROOT

from sft_cli.cli.bench_ladder import LADDER, Rung, picked
from sft_cli.errors import UsageError
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.model_facts import find_model
from sft_cli.plan.plan import Plan
from sft_cli.plan.resolve import resolve
from sft_cli.recipe.load import load_recipe
from sft_cli.recipe.schema import Recipe

TINY = Path("builtin:tiny")
OF_THE_RECIPE = ("+ everything", "float8")
BFLOAT16 = "model.dtype=bfloat16"
"""float8 beside float32 is refused."""


def rungs_of(*sets: str) -> dict[str, Recipe]:
    loaded = load_recipe(TINY, [BFLOAT16, *sets])
    return {rung.name: load_recipe(TINY, [BFLOAT16, *sets, *rung.sets(loaded.recipe)]).recipe for rung in LADDER}


def test_the_last_rung_is_the_recipe_itself() -> None:
    assert rungs_of()["+ everything"] == load_recipe(TINY, [BFLOAT16]).recipe


def test_float8_is_the_recipe_in_float8() -> None:
    loaded = load_recipe(TINY, [BFLOAT16, "kernels.float8=tensorwise", "kernels.compile=true"])
    assert rungs_of()["float8"] == loaded.recipe


def test_rows_grouped_by_length_are_so_where_they_are_padded() -> None:
    orders = {
        name: (recipe.batching.mode, recipe.batching.order)
        for name, recipe in rungs_of("batching={mode: padding, order: length_grouped}").items()
    }
    assert orders == {
        "stock": ("padding", "length_grouped"),
        "+ kernels": ("padding", "length_grouped"),
        "+ packing": ("packing", "shuffled"),
        "+ everything": ("padding", "length_grouped"),
        "published": ("packing", "shuffled"),
        "float8": ("padding", "length_grouped"),
    }


def test_kernels_that_the_recipe_names_are_the_recipes_alone() -> None:
    recipes = rungs_of("kernels.norm=torch", "kernels.loss=chunked")
    assert {name: recipe.kernels.norm for name, recipe in recipes.items()} == {
        "stock": "torch", "+ kernels": "auto", "+ packing": "auto", "+ everything": "torch", "published": "torch",
        "float8": "torch",
    }  # fmt: skip
    assert {name: recipe.kernels.loss for name, recipe in recipes.items()} == {
        "stock": "torch", "+ kernels": "auto", "+ packing": "auto", "+ everything": "chunked", "published": "torch",
        "float8": "chunked",
    }  # fmt: skip


def test_all_layers_are_checkpointed_below_the_recipe_unless_it_checkpoints_none() -> None:
    key = "sharding.activation_checkpointing"
    for name, recipe in rungs_of(f"{key}={{mode: selective, layers: 2, offload: true}}").items():
        section = recipe.sharding.activation_checkpointing
        expected = ("selective", 2, True) if name in OF_THE_RECIPE else ("full", "all", False)
        assert (section.mode, section.layers, section.offload) == expected
    for name, recipe in rungs_of(f"{key}={{mode: full, layers: 2, others: selective}}").items():
        assert recipe.sharding.activation_checkpointing.others == ("selective" if name in OF_THE_RECIPE else "none")
    assert {recipe.sharding.activation_checkpointing.mode for recipe in rungs_of(f"{key}.mode=none").values()} == {
        "none"
    }


def test_names() -> None:
    assert [rung.name for rung in picked(None)] == ["stock", "+ kernels", "+ packing", "+ everything"]
    assert [rung.name for rung in picked("everything,+ kernels, published,everything")] == [
        "+ everything", "+ kernels", "published",
    ]  # fmt: skip
    for wrong in ("", "stock,", "Stock"):
        with pytest.raises(UsageError, match="there is no rung"):
            picked(wrong)


H200 = Hardware(
    1,
    "NVIDIA H200",
    140.4,
    compute_capability=(9, 0),
    packages={
        "fla-core": "0.6.0", "triton": "3.6.0", "tilelang": "0.1.15", "flash-qla": "0.1.3", "liger-kernel": "0.8.5",
        "torchao": "0.18.0",
    },
)  # fmt: skip
ONE_GPU = ROOT / "configs" / "qwen27b-one-gpu.yaml"


def plan_on_an_h200(rung: Rung) -> Plan:
    given = ("model.path=builtin:qwen3.8-27b", "model.weights=random")
    loaded = load_recipe(ONE_GPU, given)
    recipe = load_recipe(ONE_GPU, [*given, *rung.sets(loaded.recipe)]).recipe
    return resolve(recipe, H200, find_model(recipe.model), None)


def test_on_an_h200_every_rung_of_the_27b_is_what_it_says() -> None:
    plans = {rung.name: plan_on_an_h200(rung) for rung in LADDER}
    kernels = {name: plan.recipe.kernels for name, plan in plans.items()}
    slots = ("linear_attention", "conv", "attention", "norm", "gated_norm", "mlp", "loss")
    assert {name: [getattr(chosen, slot) for slot in slots] for name, chosen in kernels.items()} == {
        "stock": ["torch", "torch", "sdpa", "torch", "torch", "torch", "torch"],
        "+ kernels": ["flash_qla", "sftune", "sdpa", "sftune", "fla", "liger", "chunked"],
        "+ packing": ["flash_qla", "sftune", "varlen", "sftune", "fla", "liger", "chunked"],
        "+ everything": ["flash_qla", "sftune", "varlen", "sftune", "fla", "liger", "chunked"],
        "published": ["flash_qla", "fla", "sdpa", "torch", "fla", "torch", "torch"],
        "float8": ["flash_qla", "sftune", "varlen", "sftune", "fla", "torch", "chunked"],
    }
    assert len({plan.recipe.optimizer for plan in plans.values()}) == 1
    assert len({plan.recipe.batching.tokens for plan in plans.values()}) == 1
