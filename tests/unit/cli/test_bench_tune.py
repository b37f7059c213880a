"""The search of `sftune bench --tune`: which recipes it tries, by how fast each is said to be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sft_cli.cli import bench_tune
from sft_cli.cli.bench_rung import Order
from sft_cli.cli.bench_tune import Search, write_tuned
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.model_facts import find_model
from sft_cli.plan.plan import Plan
from sft_cli.plan.resolve import resolve
from sft_cli.recipe.load import load_recipe
from sft_cli.recipe.schema import Recipe

TINY = Path("builtin:tiny")


def plan_of(order: Order) -> Plan:
    recipe = load_recipe(TINY, order.sets).recipe
    return resolve(recipe, Hardware(0, None, None), find_model(recipe.model), None)


@pytest.fixture(autouse=True)
def _without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_tune, "_plan", plan_of)


def searched(speed: Callable[[Recipe], float | None], *sets: str) -> tuple[Search, list[Recipe]]:
    """The search at its end, and the recipes that it ran; a speed of None: it failed."""
    search, ran = Search(Order("base", "", TINY, sets, 3, 2, None)), []
    for order in search:
        ran.append(load_recipe(TINY, order.sets).recipe)
        search.see({"tokens_per_second": speed(ran[-1])})
    return search, ran


def test_micro_batches_grow_as_long_as_that_wins_and_a_step_stays_what_it_is() -> None:
    _, ran = searched(lambda recipe: recipe.batching.tokens, "train.tokens_per_step=8192")
    assert [recipe.batching.tokens for recipe in ran] == [512, 1024, 2048, 4096, 8192]
    assert {recipe.data.max_length for recipe in ran[1:]} == {512}
    _, ran = searched(lambda recipe: 100 + (recipe.batching.tokens == 1024) * 0.5, "train.tokens_per_step=8192")
    assert [recipe.batching.tokens for recipe in ran] == [512, 1024], "half a hundredth is noise"


def test_checkpointing_is_tried_at_the_best_micro_batch(tmp_path: Path) -> None:
    costs = {"full": 20, "selective": 5, "none": 0}

    def speed(recipe: Recipe) -> float | None:
        modes = recipe.sharding.activation_checkpointing.of_layers(4)
        is_out_of_memory = modes.count("none") > 1
        return None if is_out_of_memory else 100 - sum(costs[mode] for mode in modes) + recipe.batching.tokens / 512

    search, ran = searched(speed, "sharding.activation_checkpointing.mode=full")
    sections = [recipe.sharding.activation_checkpointing for recipe in ran]
    assert [recipe.batching.tokens for recipe in ran] == [512] + [1024] * 8
    # `auto` is `full` on a CPU, which has run.
    assert [(section.mode, section.layers, section.others) for section in sections] == [
        ("full", "all", "none"), ("full", "all", "none"), ("none", "all", "none"),
        ("full", 3, "selective"), ("full", 2, "selective"), ("full", 1, "selective"),
        ("selective", "all", "none"), ("selective", 3, "none"), ("selective", 2, "none"),
    ]  # fmt: skip
    assert search.best is not None
    told = write_tuned(tmp_path / "fast.yaml", search.best)
    assert told.startswith(
        f"wrote {tmp_path}/fast.yaml: the fastest, batching.tokens=1024 checkpointing.mode=selective"
    ), told
    written = load_recipe(tmp_path / "fast.yaml").recipe
    assert written.model_dump() == ran[-2].model_dump()
    assert written.checkpoint.enabled, "a recipe to train with, not to bench"


def test_a_recipe_of_another_kind_that_stays_the_fastest_is_searched_on_its_own() -> None:
    """`full` on some layers, `none` on the others is nothing that `auto` chooses."""

    def speed(recipe: Recipe) -> float | None:
        section = recipe.sharding.activation_checkpointing
        is_own = section.mode == "full" and section.others == "none"
        return 300 - 10 * int(section.layers) if is_own else 100

    key = "sharding.activation_checkpointing"
    _, ran = searched(speed, f"{key}.mode=full", f"{key}.layers=3", "train.tokens_per_step=512")
    sections = [recipe.sharding.activation_checkpointing for recipe in ran]
    assert [(section.mode, section.layers, section.others) for section in sections] == [
        ("full", 3, "none"), ("auto", "all", "none"), ("none", "all", "none"),
        ("full", 2, "none"), ("full", 1, "none"),
    ]  # fmt: skip


@pytest.mark.parametrize("offload", ["true", "false"])
def test_moments_of_an_8_bit_optimizer_are_tried_on_the_other_side_of_the_link(offload: str) -> None:
    updates = ("optimizer.name=adamw_8bit", "optimizer.in_backward=true", "train.max_grad_norm=null")
    search, ran = searched(
        lambda recipe: 110 if recipe.optimizer.offload != (offload == "true") else 100,
        *updates,
        f"optimizer.offload={offload}",
        "sharding.activation_checkpointing.mode=full",
        "train.tokens_per_step=512",
    )
    assert [str(recipe.optimizer.offload).lower() == offload for recipe in ran] == [True, True, False, False]
    assert search.best is not None
    assert load_recipe(TINY, search.best.sets).recipe.optimizer.offload is (offload == "false")


def test_where_nothing_is_checkpointed_nothing_is_tried_of_it() -> None:
    _, ran = searched(lambda recipe: 1.0)
    assert [recipe.batching.tokens for recipe in ran] == [512, 1024]


def test_without_a_first_run_there_is_no_search() -> None:
    search, ran = searched(lambda recipe: None)
    assert (search.best, len(ran)) == (None, 1)
