"""Peak memory of one GPU (or one CPU process), estimated from shapes.

The parts do not peak together: logits are gone when a layer's gradients appear, and activations when the optimizer
steps. So a step is cut into moments, each with its own sum, and what is reported are the parts at the worst of them.
`docs/memory.md` compares them with what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from sft_cli.plan.activations import (
    FLOAT32_BYTES,
    backward_bytes_per_token,
    kept_bytes_per_token,
    layer_bytes_per_token,
)
from sft_cli.plan.architecture import Architecture
from sft_cli.plan.loss_chunks import chunk_positions
from sft_cli.plan.plan import MemoryGib
from sft_cli.plan.sharded_bytes import BYTES, ShardedBytes
from sft_cli.recipe.schema import Recipe

GIB = 1 << 30

OUTSIDE_TENSORS_GIB = 2.0
"""Of a GPU, beside torch's tensors: CUDA's context and libraries, NCCL, and what the allocator can't use of what it
holds. Not in the estimate, which is what `peak_memory_gib` of metrics.jsonl counts, but in whether it fits."""

INTERPRETER_GIB = 0.5
"""Of a CPU process, whose memory is all of it: Python with torch and transformers."""


@dataclass(frozen=True)
class Moment:
    """A moment of a step, and bytes of what comes and goes; masters and moments of Adam are always there."""

    name: str
    gradients: float
    activations: float = 0
    logits: float = 0
    buffers: float = 0

    @property
    def total(self) -> float:
        return self.gradients + self.activations + self.logits + self.buffers


@dataclass(frozen=True)
class ActivationBytes:
    """Of one micro-batch of `batching.tokens` slots, on the GPU."""

    waiting: list[float]
    """For n from 0 to all: what the first n layers keep for backward, while it is at the next one."""
    at_work: list[float]
    """Of each layer while backward is there: all that forward saves, made again where it was not kept."""


@dataclass(frozen=True)
class Peak:
    """The worst moment of a step."""

    gib: MemoryGib
    moment: str
    host_gib: float
    """Host memory of one rank, beside that of the process itself; more than 0 with `sharding.cpu_offload`."""


def estimate_memory(recipe: Recipe, shape: Architecture, *, ranks: int, device: Literal["cpu", "cuda"]) -> MemoryGib:
    """Peak memory of one rank in GiB, by what it is spent on at that moment; see `find_peak`."""
    return find_peak(recipe, shape, ranks=ranks, device=device).gib


def find_peak(recipe: Recipe, shape: Architecture, *, ranks: int, device: Literal["cpu", "cuda"]) -> Peak:
    """The worst moment of a step on one rank.

    Args:
        recipe: resolved, so without `auto`.
        shape: the model.
        ranks: processes over all nodes.
        device: what each of them runs on.
    """
    sizes = ShardedBytes(recipe, shape, ranks, device)
    worst = max(moments(recipe, shape, sizes), key=lambda moment: moment.total)
    in_host = sizes.moments_in_host
    if sizes.is_offloaded:
        in_host = sizes.parameters * (1 if recipe.optimizer.in_backward else 2) + sizes.optimizer
    parts = {
        "parameters": 0.0 if sizes.is_offloaded else sizes.parameters,
        "gradients": worst.gradients,
        "optimizer": 0.0 if sizes.is_offloaded else sizes.moments_on_device,
        "activations": worst.activations,
        "logits": worst.logits,
        "buffers": worst.buffers + (INTERPRETER_GIB * GIB if device == "cpu" else 0),
    }
    gib = {part: size / GIB for part, size in parts.items()}
    return Peak(MemoryGib(**gib, total=sum(gib.values())), worst.name, in_host / GIB)


def fits(total_gib: float, gpu_memory_gib: float) -> bool:
    """Whether tensors of so many GiB fit a GPU, beside what is not tensors."""
    return total_gib + OUTSIDE_TENSORS_GIB < gpu_memory_gib


def moments(recipe: Recipe, shape: Architecture, sizes: ShardedBytes) -> Iterator[Moment]:
    """The moments of a step that may be the worst, in its order."""
    tokens, activations = recipe.batching.tokens, activation_bytes(recipe, shape)
    residual = tokens * shape.hidden_size * sizes.compute
    # Before the loss: counted positions, normalised in float32 by torch's own norm, and their norm.
    before_loss = tokens * shape.hidden_size * (2 * sizes.compute + 2 * FLOAT32_BYTES)
    at_end = activations.waiting[-1] + before_loss
    for logits, weight_gradients in _loss_moments(recipe, shape, sizes.device):
        yield Moment(
            "loss",
            gradients=sizes.waiting_gradients(0) + weight_gradients,
            activations=at_end + residual,
            logits=logits,
            buffers=sizes.gathered_for_loss(in_forward=recipe.kernels.loss != "torch") + sizes.buffers,
        )
    # A tied weight's gradient stays whole to the end of backward, where that of the embedding joins it.
    done, tied = (0, sizes.made(sizes.head, is_layer=False)) if sizes.is_tied else (sizes.head, 0.0)
    if not sizes.is_tied:
        yield Moment(
            "gradient of the output projection",
            gradients=sizes.waiting_gradients(0) + sizes.reducing(sizes.head, is_layer=False),
            activations=activations.waiting[-1] + residual,
            buffers=sizes.gathered_after_loss() + sizes.buffers,
        )
    before = 0.0 if sizes.is_tied else sizes.reduce_input(sizes.head, is_layer=False)
    flowing = tokens * backward_bytes_per_token(shape, sizes.compute, recipe.kernels)
    for layer in reversed(range(shape.layers)):
        block, waiting = sizes.blocks[layer], sizes.waiting_gradients(done) + tied
        yield Moment(
            "backward of a layer",
            gradients=waiting + before + sizes.made(block),
            activations=activations.waiting[layer] + activations.at_work[layer] + flowing,
            buffers=sizes.gathered_for_layer(layer) + sizes.float8_copies + sizes.buffers,
        )
        yield Moment(
            "gradients of a layer",
            gradients=waiting + sizes.reducing(block),
            activations=activations.waiting[layer] + residual,
            buffers=sizes.gathered_for_layer(layer, is_done=True) + sizes.buffers,
        )
        before, done = sizes.reduce_input(block), done + block
    yield Moment(
        "gradient of the embedding",
        gradients=sizes.waiting_gradients(done) + max(sizes.reducing(sizes.count.embedding, is_layer=False), 2 * tied),
        activations=residual,
        buffers=sizes.buffers,
    )
    yield Moment("optimizer step", gradients=sizes.waiting_gradients(sizes.count.total), buffers=sizes.buffers)


def activation_bytes(recipe: Recipe, shape: Architecture) -> ActivationBytes:
    """What layers keep for backward: the one place that knows what activation checkpointing does to memory.

    Of what waits in host memory (`offload`) that of one layer is on the GPU, beside the one at work.
    """
    compute = BYTES[recipe.model.dtype]
    checkpointing, tokens = recipe.sharding.activation_checkpointing, recipe.batching.tokens
    modes = checkpointing.of_layers(shape.layers)
    saved = [tokens * layer_bytes_per_token(shape, layer, compute, recipe.kernels) for layer in range(shape.layers)]
    kept = [tokens * size for size in kept_bytes_per_token(shape, checkpointing, compute, recipe.kernels)]
    # The input from which all of a layer is made again exists besides.
    inputs = (size if mode == "full" else 0.0 for mode, size in zip(modes, kept, strict=True))
    at_work = [made + layer_input for made, layer_input in zip(saved, inputs, strict=True)]
    if checkpointing.offload:
        # The last layer's stays, and when the loss begins that of the one before it may not have left yet.
        return ActivationBytes([0.0, *kept[:-1], sum(kept[-2:])], at_work)
    return ActivationBytes(list(accumulate(kept, initial=0.0)), at_work)


def _loss_moments(recipe: Recipe, shape: Architecture, device: Literal["cpu", "cuda"]) -> Iterator[tuple[float, float]]:
    """Bytes of logits and their like, and of the projection's gradient, at each moment of the loss that may be the
    worst. All positions count: which of them the loss looks at is the data's business.

    `torch` holds all positions: log-probabilities, their gradient and that of the logits in float32; then the latter in
    the compute dtype, while the weight's gradient is made. `chunked` and Liger's make gradients in forward, and hold
    the logits of a chunk in the compute dtype; `chunked` on a CPU in float32 besides. The weight's gradient is summed
    in the compute dtype with `chunked`; with Liger's in float32, and then rounded.
    """
    compute, tokens = BYTES[recipe.model.dtype], recipe.batching.tokens
    weight = shape.vocab_size * shape.hidden_size
    rounded = 0 if compute == FLOAT32_BYTES else compute
    if recipe.kernels.loss == "liger":
        # As many positions a chunk as make its logits no larger than the hidden states, up to a power of two.
        chunk = min(tokens, 1 << (-(-tokens * shape.hidden_size // shape.vocab_size) - 1).bit_length())
        yield chunk * shape.vocab_size * compute, weight * (FLOAT32_BYTES + rounded)
    elif recipe.kernels.loss == "torch":
        logits = tokens * shape.vocab_size
        yield logits * 3 * FLOAT32_BYTES, 0
        yield logits * compute, weight * compute
    else:
        chunk = min(tokens, chunk_positions(tokens, shape.vocab_size, compute, device))
        in_float32 = 0 if device == "cuda" else FLOAT32_BYTES + (FLOAT32_BYTES if rounded else 0)
        yield chunk * shape.vocab_size * (compute + in_float32), weight * compute
