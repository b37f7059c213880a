from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from sft_cli.plan.architecture import Architecture
from sft_cli.plan.memory import GIB, _loss_moments, estimate_memory, find_peak, fits
from sft_cli.plan.parameters import count_parameters
from sft_cli.plan.plan import MemoryGib
from sft_cli.plan.sharded_bytes import ShardedBytes
from sft_cli.recipe.schema import Recipe

FASTEST = {
    "linear_attention": "flash_qla", "conv": "fla", "attention": "varlen", "norm": "liger", "gated_norm": "fla",
    "mlp": "liger", "loss": "chunked",
}  # fmt: skip

LONG = {"batching": {"tokens": 16384}, "train": {"tokens_per_step": 16384 * 16}}
"""With which backward of a layer is the worst moment of 27B: the loss's chunks are as long as with half the slots."""

MakeRecipe = Callable[..., Recipe]
Shape = Callable[..., Architecture]


def estimate(make_recipe: MakeRecipe, shape: Architecture, ranks: int = 1, **sections: Any) -> MemoryGib:
    return estimate_memory(make_recipe(**sections), shape, ranks=ranks, device="cuda")


def checkpointing(**keys: Any) -> dict[str, Any]:
    return {"activation_checkpointing": keys}


def test_the_total_is_the_sum_of_the_parts(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    for loss in ("torch", "chunked", "liger"):
        for backend in ("fsdp2", "none"):
            memory = estimate(
                make_recipe, shape_of("tiny-hybrid"), kernels={"loss": loss}, sharding={"backend": backend}
            )
            parts = memory.model_dump()
            assert parts.pop("total") == pytest.approx(sum(parts.values()))
            assert all(part >= 0 for part in parts.values())


def test_masters_gradients_and_moments_by_hand(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    """Two long micro-batches on each of 8 ranks, full checkpointing: the worst moment is backward of the last layer."""
    shape = shape_of("qwen3.8-27b")
    count = count_parameters(shape)
    masters_gib = 26_895_998_464 * 4 / 8 / GIB
    recipe = make_recipe(kernels=FASTEST, **LONG)
    peak = find_peak(recipe, shape, ranks=8, device="cuda")
    assert peak.moment == "backward of a layer"
    assert peak.gib.parameters == pytest.approx(masters_gib)
    assert peak.gib.optimizer == pytest.approx(2 * masters_gib)
    head, block = count.head + count.final_norm, count.layers[-1].total
    # Beside the shards of the first micro-batch: what the head's were reduced from, and this layer's in bfloat16.
    assert peak.gib.gradients == pytest.approx(masters_gib + (head * 4 + block * 2) / GIB)
    # It, and the one before it on its way.
    largest = max(layer.total for layer in count.layers)
    assert peak.gib.buffers == pytest.approx((block + largest) * 2 / GIB)
    assert peak.gib.logits == 0


def test_without_sharding_every_rank_has_it_all(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    shape = shape_of("tiny-hybrid")
    memory = estimate(make_recipe, shape, sharding={"backend": "none"})
    masters = pytest.approx(count_parameters(shape).total * 4 / GIB)
    assert memory.parameters == masters
    assert memory.optimizer / 2 == masters


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


def test_the_chunked_loss_by_hand(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    """It is the worst moment: logits of half the positions, and the projection's gradient, both in bfloat16."""
    shape = shape_of("qwen3.8-27b")
    model = {"path": "builtin:qwen3.8-27b", "master_dtype": "bfloat16"}
    recipe = make_recipe(model=model, kernels=FASTEST, optimizer={"in_backward": True}, sharding={"backend": "none"})
    peak = find_peak(recipe, shape, ranks=1, device="cuda")
    assert peak.moment == "loss"
    assert peak.gib.logits * GIB == 4096 * 248_320 * 2
    assert peak.gib.gradients * GIB == 248_320 * 5120 * 2


def test_without_fsdp_the_heads_gradient_becomes_the_masters_whole(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    """Autograd casts it, one tensor, where a layer's are cast one after another."""
    shape = shape_of("qwen3.8-27b")
    recipe = make_recipe(kernels=FASTEST, optimizer={"in_backward": True}, sharding={"backend": "none"})
    peak = find_peak(recipe, shape, ranks=1, device="cuda")
    assert peak.moment == "gradient of the output projection"
    assert peak.gib.gradients * GIB == (248_320 + 1) * 5120 * 4  # the last norm is in its group


def test_on_a_cpu_a_chunk_is_short_and_has_float32_copies(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    shape = shape_of("tiny-hybrid")
    for dtype, size in (("bfloat16", 2 + 4 + 4), ("float32", 4 + 4)):
        recipe = make_recipe(kernels={"loss": "chunked"}, model={"path": "builtin:tiny-hybrid", "dtype": dtype})
        (logits, of_weight), *others = _loss_moments(recipe, shape, "cpu")
        assert not others
        assert logits == 1024 * shape.vocab_size * size
        assert of_weight == shape.vocab_size * shape.hidden_size * (2 if dtype == "bfloat16" else 4)


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
    "buffers": ({"sharding": {"buffers": "allocator"}}, {"sharding": {"buffers": "preallocated"}}),
    "deferred reduction": ({"sharding": {"defer_reduce": False}}, {"sharding": {"defer_reduce": True}}),
    "offloaded activations": (
        {"sharding": checkpointing(mode="none", offload=True)},
        {"sharding": checkpointing(mode="none", offload=False)},
    ),
    "8-bit moments": ({"optimizer": {"name": "adamw_8bit"}}, {"optimizer": {"name": "adamw"}}),
    "update in backward": ({"optimizer": {"in_backward": True}}, {"optimizer": {"in_backward": False}}),
    "offloaded masters": ({"sharding": {"cpu_offload": True}}, {"sharding": {"cpu_offload": False}}),
    "one micro-batch a step": ({"train": {"tokens_per_step": 1}}, {"train": {"tokens_per_step": 131072}}),
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


def test_deferred_gradients_of_27b_stay_whole(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    """Field notes: accumulation without reduce-scatter keeps 54 GB at 27B. FSDP2 keeps them in the reduce dtype."""
    for dtype, size in (("bfloat16", 2), ("float32", 4)):
        deferred = estimate(
            make_recipe, shape_of("qwen3.8-27b"), 8, sharding={"defer_reduce": True, "reduce_dtype": dtype}
        )
        assert deferred.gradients * GIB > 26_895_998_464 * size * 0.95
    reduced_once = {"train": {"tokens_per_step": 1}, "sharding": {"defer_reduce": True}}
    assert estimate(make_recipe, shape_of("qwen3.8-27b"), 8, **reduced_once).gradients < 20


def test_an_update_in_backward_keeps_no_gradients(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    shape = shape_of("qwen3.8-27b")
    whole = count_parameters(shape).total * 2 / GIB
    bfloat16 = {"path": "builtin:qwen3.8-27b", "master_dtype": "bfloat16"}
    memory = estimate(make_recipe, shape, model=bfloat16, optimizer={"in_backward": True})
    assert memory.gradients < whole / 3
    assert estimate(make_recipe, shape, model=bfloat16).gradients > whole


def test_moments_in_8_bits(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    memory = estimate(make_recipe, shape_of("qwen3.8-27b"), optimizer={"name": "adamw_8bit"})
    assert memory.optimizer * GIB == pytest.approx(26_895_998_464 * 2 * (1 + 4 / 256))


def test_offloaded_masters_are_in_host_memory(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    recipe, shape = make_recipe(sharding={"cpu_offload": True}), shape_of("qwen3.8-27b")
    peak = find_peak(recipe, shape, ranks=4, device="cuda")
    assert peak.gib.parameters == peak.gib.optimizer == 0
    assert peak.host_gib * GIB == pytest.approx(26_895_998_464 * 16 / 4)
    on_cpu = find_peak(recipe, shape, ranks=4, device="cpu")
    assert on_cpu.host_gib == 0
    assert on_cpu.gib.parameters * GIB == pytest.approx(26_895_998_464 * 4 / 4)


def test_what_is_not_tensors_counts_in_whether_it_fits() -> None:
    assert fits(80.0, 82.1)
    assert not fits(80.0, 81.0)


def test_preallocated_buffers_are_there_throughout(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    """parallel/buffers.py: prefetch + 1 to gather a layer through, two to reduce one from."""
    shape = shape_of("qwen3.8-27b")
    block = max(layer.total for layer in count_parameters(shape).layers)
    for prefetch in (0, 1, 2):
        recipe = make_recipe(kernels=FASTEST, **LONG, sharding={"buffers": "preallocated", "prefetch": prefetch})
        peak = find_peak(recipe, shape, ranks=8, device="cuda")
        # The layer at work is copied out of its buffer.
        assert peak.gib.buffers * GIB == pytest.approx(block * ((prefetch + 1) * 2 + 2 * 4 + 2), rel=0.01)
    one = find_peak(make_recipe(sharding={"buffers": "preallocated"}), shape, ranks=1, device="cuda")
    assert one.gib.buffers * GIB == pytest.approx(block * 2 * 4)


def test_layers_gathered_in_float8_take_half(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    """A byte for each number of the linear layers; their casts are counted where weights come in bfloat16, too."""
    shape = shape_of("qwen3.8-27b")
    mlp, delta, attention = 3 * 17408, 10240 + 2 * 6144, 12288 + 2 * 1024 + 6144
    sharding = {"reshard_after_forward": False, **checkpointing(mode="full")}

    def sizes(float8: str, **keys: Any) -> ShardedBytes:
        kernels = {**FASTEST, "mlp": "torch", "compile": True, "float8": float8}
        return ShardedBytes(make_recipe(kernels=kernels, sharding={**sharding, **keys}), shape, 2, "cuda")

    saved = 5120 * (64 * mlp + 48 * delta + 16 * attention)
    whole = sizes("none").gathered_for_loss(in_forward=True)
    assert whole - sizes("tensorwise").gathered_for_loss(in_forward=True) == saved
    first = sizes("none").gathered_for_layer(0) - sizes("tensorwise").gathered_for_layer(0)
    assert first == 5120 * (mlp + delta)
    assert sizes("rowwise").gathered_for_loss(in_forward=True) == whole
    assert sizes("tensorwise", backend="none").gathered_for_layer(63) == 2 * sum(sizes("none").blocks)
    assert [sizes(float8).float8_copies for float8 in ("none", "rowwise")] == [0, 5120 * mlp]


def test_of_a_compiled_mlp_three_gradients_are_made_together(make_recipe: MakeRecipe, shape_of: Shape) -> None:
    shape, script = shape_of("qwen3.8-27b"), {"sharding": {"backend": "none"}}
    block = count_parameters(shape).layers[0].total
    for compiles, expected in ((False, block), (True, 2 * 3 * 5120 * 17408)):
        recipe = make_recipe(kernels={**FASTEST, "mlp": "torch", "compile": compiles}, **script)
        assert ShardedBytes(recipe, shape, 1, "cuda").made(block) == expected


def test_slots_for_moments_are_as_large_as_the_layer_with_the_most() -> None:
    """The 27B's embedding is too large on one rank; an eighth of it waits, and is larger than any layer's eighth."""
    from sft_cli.plan.architecture import read_architecture
    from sft_cli.plan.moments_offload import SLOTS
    from sft_cli.plan.shapes import read_shape
    from sft_cli.recipe.schema import Recipe

    optimizer = {"name": "adamw_8bit", "in_backward": True, "offload": True}
    recipe = Recipe.model_validate({"model": {"path": "x"}, "data": {"train": [{"path": "x"}]}, "optimizer": optimizer})
    shape = read_architecture(read_shape("qwen3.8-27b"))
    layer = max(layer.total for layer in count_parameters(shape).layers)
    for ranks, largest in ((1, layer), (8, 248320 * 5120 // 8)):
        sizes = ShardedBytes(recipe, shape, ranks, "cuda")
        slots = sizes.moments_on_device - (sizes.optimizer - sizes.moments_in_host)
        assert slots == SLOTS * 2 * largest


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 8])
def test_experts_wait_by_the_tensors_that_hold_them(ranks: int) -> None:
    """A run makes host memory by this number before its model is there. On one rank the larger of a layer's two is too
    large to wait; seven have 19 of 128 experts where that is most, not 18.3."""
    from sft_cli.model.build import build_skeleton
    from sft_cli.plan.architecture import read_architecture
    from sft_cli.plan.moments_offload import SLOTS, waits

    config = {
        "model_type": "qwen3_next", "vocab_size": 2048, "hidden_size": 2048, "intermediate_size": 4096,
        "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
        "tie_word_embeddings": False, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 512,
        "mlp_only_layers": [1], "decoder_sparse_step": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    }  # fmt: skip
    optimizer = {"name": "adamw_8bit", "in_backward": True, "offload": True}
    recipe = Recipe.model_validate({"model": {"path": "x"}, "data": {"train": [{"path": "x"}]}, "optimizer": optimizer})
    skeleton = build_skeleton(config)

    def numbers_waiting(module: nn.Module) -> int:
        matrices = [parameter for parameter in module.parameters() if parameter.ndim > 1]
        shards = [-(-matrix.shape[0] // ranks) * (matrix.numel() // matrix.shape[0]) for matrix in matrices]
        return sum(numbers for numbers in shards if waits(numbers))

    sizes = ShardedBytes(recipe, read_architecture(config), ranks, "cuda")
    assert 0.995 * sizes.moments_in_host <= 2 * numbers_waiting(skeleton) <= 1.001 * sizes.moments_in_host
    slots = sizes.moments_on_device - (sizes.optimizer - sizes.moments_in_host)
    largest = max(numbers_waiting(layer) for layer in skeleton.model.layers)
    assert slots == pytest.approx(SLOTS * 2 * largest, rel=0.01)
