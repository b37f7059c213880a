from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sft_cli.plan.architecture import Architecture
from sft_cli.plan.memory import GIB, estimate_memory
from sft_cli.plan.parameters import count_parameters
from sft_cli.plan.plan import MemoryGib
from sft_cli.recipe.schema import Recipe

MakeRecipe = Callable[..., Recipe]
Shape = Callable[..., Architecture]


def estimate(make_recipe: MakeRecipe, shape: Architecture, ranks: int = 1, **sections: Any) -> MemoryGib:
    return estimate_memory(make_recipe(**sections), shape, ranks=ranks, device="cuda")


def checkpointing(**keys: Any) -> dict[str, Any]:
    return {"activation_checkpointing": keys}


def test_the_total_is_the_sum_of_the_parts(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    parts = estimate(make_recipe, shape_of("tiny-hybrid")).model_dump()
    total = parts.pop("total")
    assert total == pytest.approx(sum(parts.values()))
    assert all(part > 0 for part in parts.values())


def test_masters_gradients_and_moments_by_hand(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    shape = shape_of("qwen3.8-27b")
    masters_gib = 26_895_998_464 * 4 / 8 / GIB
    memory = estimate(make_recipe, shape, ranks=8)
    assert memory.parameters == pytest.approx(masters_gib)
    assert memory.optimizer == pytest.approx(2 * masters_gib)
    # Beside the shard: the output projection's gradient in bfloat16 and, being reduced, in float32.
    assert memory.gradients == pytest.approx(masters_gib + 248_320 * 5_120 * (2 + 4) / GIB)


def test_without_sharding_every_rank_has_it_all(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    shape = shape_of("tiny-hybrid")
    memory = estimate(make_recipe, shape, sharding={"backend": "none"})
    assert memory.parameters == memory.gradients == pytest.approx(count_parameters(shape).total * 4 / GIB)


def test_replicas_share_the_shards(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    shape = shape_of("tiny-hybrid")
    hybrid = estimate(make_recipe, shape, ranks=8, sharding={"replicas": 4})
    assert hybrid.parameters == estimate(make_recipe, shape, ranks=2).parameters


def test_the_whole_loss_holds_the_logits_several_times(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    """Field notes: 8,192 tokens x 248,320 words x 4 bytes, several times over."""
    shape = shape_of("qwen3.8-27b")
    whole = estimate(make_recipe, shape, kernels={"loss": "torch"}).logits
    chunked = estimate(make_recipe, shape, kernels={"loss": "chunked"}).logits
    assert 2 < whole / (8192 * 248_320 * 4 / GIB) < 4
    assert chunked < whole / 5


def test_eight_layers_of_27b_are_near_the_measured_peak(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    """Field notes: 54.7 GiB on one H200 for the stock torch path (padded, whole logits), all in bfloat16."""
    shape = shape_of(
        "qwen3.8-27b", num_hidden_layers=8, layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2
    )
    memory = estimate(
        make_recipe,
        shape,
        model={"path": "builtin:qwen3.8-27b", "master_dtype": "bfloat16"},
        sharding={"backend": "none"},
        kernels={"loss": "torch"},
    )
    # The parts do not peak together, so the sum is above the measurement.
    assert 54.7 < memory.total < 1.7 * 54.7


def test_27b_trains_on_eight_h200(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    assert estimate(make_recipe, shape_of("qwen3.8-27b"), ranks=8).total < 139
    assert estimate(make_recipe, shape_of("qwen3.8-27b"), ranks=1).total > 139


FULL = checkpointing(mode="full")
LESS_AND_MORE = {
    "tokens": ({"batching": {"tokens": 4096}}, {"batching": {"tokens": 8192}}),
    "compute dtype": (
        {"model": {"path": "builtin:tiny-hybrid", "dtype": "bfloat16"}},
        {"model": {"path": "builtin:tiny-hybrid", "dtype": "float32"}},
    ),
    "master dtype": (
        {"model": {"path": "builtin:tiny-hybrid", "master_dtype": "bfloat16"}},
        {"model": {"path": "builtin:tiny-hybrid", "master_dtype": "float32"}},
    ),
    "reduce dtype": ({"sharding": {"reduce_dtype": "bfloat16"}}, {"sharding": {"reduce_dtype": "float32"}}),
    "loss": ({"kernels": {"loss": "chunked"}}, {"kernels": {"loss": "torch"}}),
    "prefetch": ({"sharding": {"prefetch": 0}}, {"sharding": {"prefetch": 2}}),
    "reshard": ({"sharding": {"reshard_after_forward": True}}, {"sharding": {"reshard_after_forward": False}}),
    "reshard to a few": ({"sharding": {"reshard_after_forward": True}}, {"sharding": {"reshard_after_forward": 4}}),
    "checkpointing": ({"sharding": FULL}, {"sharding": checkpointing(mode="none")}),
    "checkpointed layers": ({"sharding": FULL}, {"sharding": checkpointing(mode="full", layers=2)}),
    "selective": (
        {"sharding": checkpointing(mode="selective")},
        {"sharding": checkpointing(mode="none")},
    ),
    "full": ({"sharding": FULL}, {"sharding": checkpointing(mode="selective")}),
    "offload of full": ({"sharding": checkpointing(mode="full", offload=True)}, {"sharding": FULL}),
    "offload of none": (
        {"sharding": checkpointing(mode="none", offload=True)},
        {"sharding": checkpointing(mode="none")},
    ),
    "one layer less": (
        {"sharding": checkpointing(mode="full", layers=2)},
        {"sharding": checkpointing(mode="full", layers=1)},
    ),
    "replicas": ({"sharding": {"replicas": 1}}, {"sharding": {"replicas": 4}}),
}


@pytest.mark.parametrize(("less", "more"), LESS_AND_MORE.values(), ids=LESS_AND_MORE)
def test_more_of_a_knob_takes_more_memory(
    make_recipe: MakeRecipe, shape_of: Shape, less: dict[str, Any], more: dict[str, Any]
) -> None:
    shape = shape_of("tiny-hybrid")
    assert estimate(make_recipe, shape, ranks=4, **less).total < estimate(make_recipe, shape, ranks=4, **more).total


def test_more_ranks_take_less_memory_each(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    shape = shape_of("qwen3.5-9b")
    totals = [estimate(make_recipe, shape, ranks=ranks).total for ranks in (1, 2, 4, 8)]
    assert totals == sorted(totals, reverse=True)


def test_all_layers_and_their_number_are_the_same(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    shape = shape_of("tiny-hybrid")
    every, four, many = (
        estimate(make_recipe, shape, sharding=checkpointing(mode="full", layers=layers)) for layers in ("all", 4, 99)
    )
    assert every == four == many
    none = estimate(make_recipe, shape, sharding=checkpointing(mode="none"))
    assert estimate(make_recipe, shape, sharding=checkpointing(mode="full", layers=0)) == none
