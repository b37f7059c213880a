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
    def speed(recipe: Recipe) -> float | None:
        section = recipe.sharding.activation_checkpointing
        kept = {"full": 0, "selective": 50, "none": None}[section.mode]
        layers = 4 if isinstance(section.layers, str) else section.layers
        return None if kept is None or layers < 2 else 100 + kept - 10 * layers + recipe.batching.tokens / 512

    search, ran = searched(speed, "sharding.activation_checkpointing.mode=full")
    sections = [recipe.sharding.activation_checkpointing for recipe in ran]
    assert [recipe.batching.tokens for recipe in ran] == [512] + [1024] * 6
    assert [(section.mode, section.layers) for section in sections] == [
        ("full", "all"), ("full", "all"), ("selective", "auto"), ("none", "auto"),
        ("selective", 3), ("selective", 2), ("selective", 1),
    ]  # fmt: skip
    assert search.best is not None
    told = write_tuned(tmp_path / "fast.yaml", search.best)
    assert told.startswith(
        f"wrote {tmp_path}/fast.yaml: the fastest, batching.tokens=1024 checkpointing.mode=selective"
    )
    written = load_recipe(tmp_path / "fast.yaml").recipe
    assert written.model_dump() == ran[5].model_dump()
    assert written.checkpoint.enabled, "a recipe to train with, not to bench"


def test_where_nothing_is_checkpointed_nothing_is_tried_of_it() -> None:
    _, ran = searched(lambda recipe: 1.0)
    assert [recipe.batching.tokens for recipe in ran] == [512, 1024]


def test_without_a_first_run_there_is_no_search() -> None:
    search, ran = searched(lambda recipe: None)
    assert (search.best, len(ran)) == (None, 1)
