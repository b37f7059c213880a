"""Peak memory of one GPU (or one CPU process), estimated from shapes by what it is spent on.

The parts are summed, though not all of them peak at the same moment: the estimate errs on the high side.
"""

from __future__ import annotations

from typing import Literal

from sft_cli.plan.activations import FLOAT32_BYTES, activation_bytes_per_token
from sft_cli.plan.architecture import Architecture
from sft_cli.plan.parameters import Parameters, count_parameters
from sft_cli.plan.plan import MemoryGib
from sft_cli.recipe.schema import Recipe, ShardingSection

GIB = 1 << 30
BYTES = {"float32": 4, "bfloat16": 2}

LOSS_CHUNK_TOKENS = 1024
"""Positions whose logits the chunked loss holds at a time (`kernels/loss.py`)."""

RUNTIME_GIB = {"cuda": 2.0, "cpu": 0.5}
"""Allowance for what is there before the model: CUDA context, NCCL and cuBLAS workspaces and fragments of the
allocator on a GPU; the interpreter with torch and transformers on a CPU."""


def estimate_memory(recipe: Recipe, shape: Architecture, *, ranks: int, device: Literal["cpu", "cuda"]) -> MemoryGib:
    """Peak memory of one rank in GiB.

    Args:
        recipe: resolved, so without `auto`.
        shape: the model.
        ranks: processes over all nodes.
        device: what each of them runs on.
    """
    parameters = count_parameters(shape)
    sharding = recipe.sharding
    shards = ranks // sharding.replicas if sharding.backend == "fsdp2" else 1
    master, compute = BYTES[recipe.model.master_dtype], BYTES[recipe.model.dtype]
    masters = parameters.total * master / shards
    parts = {
        "parameters": masters,
        "gradients": masters + _gradients_in_flight(parameters, sharding, compute),
        "optimizer": 2 * masters,
        "activations": activation_bytes(recipe, shape),
        "logits": logits_bytes(recipe, shape),
        "buffers": gathered_bytes(parameters, recipe, shards) + RUNTIME_GIB[device] * GIB,
    }
    gib = {part: size / GIB for part, size in parts.items()}
    return MemoryGib(**gib, total=sum(gib.values()))


def _gradients_in_flight(parameters: Parameters, sharding: ShardingSection, compute_bytes: int) -> float:
    """Beside its shard of the master gradients (4 or 2 bytes a parameter over the shards), FSDP2 holds those of one
    group whole: in the compute dtype as backward makes them, and in the reduce dtype as they are summed."""
    if sharding.backend == "none":
        return 0
    largest = max(parameters.embedding, parameters.head, *(layer.total for layer in parameters.layers))
    return largest * (compute_bytes + BYTES[sharding.reduce_dtype])


def gathered_bytes(parameters: Parameters, recipe: Recipe, shards: int) -> float:
    """Bytes of whole parameters in the compute dtype that exist beside the shards.

    FSDP2: the block at work, `prefetch` blocks after it, and the output projection, which stays from the end of
    forward to the start of backward. `reshard_after_forward: false` keeps every parameter; an integer n keeps all
    blocks spread over n ranks. Without FSDP2: a copy of every parameter where the compute dtype isn't the masters'.
    """
    compute = BYTES[recipe.model.dtype]
    sharding = recipe.sharding
    if sharding.backend == "none":
        return parameters.total * compute if recipe.model.dtype != recipe.model.master_dtype else 0
    if sharding.reshard_after_forward is False:
        return parameters.total * compute
    blocks = [layer.total for layer in parameters.layers]
    at_work = min(1 + sharding.prefetch, len(blocks)) * max(blocks) + parameters.head_matmul + parameters.final_norm
    kept = 0.0
    if sharding.reshard_after_forward is not True:
        kept = sum(blocks) / min(sharding.reshard_after_forward, shards)
    return min(at_work + kept, parameters.total) * compute


def activation_bytes(recipe: Recipe, shape: Architecture) -> float:
    """Bytes kept for backward by one micro-batch of `batching.tokens` slots, at the worst moment."""
    checkpointing, compute = recipe.sharding.activation_checkpointing, BYTES[recipe.model.dtype]
    return recipe.batching.tokens * activation_bytes_per_token(shape, checkpointing, compute, recipe.kernels)


def logits_bytes(recipe: Recipe, shape: Architecture) -> float:
    """Bytes of logits and their like at the worst moment of the loss: the start of its backward.

    Per position and word: the projection in the compute dtype, log-probabilities, their gradient and the logits'
    gradient in float32. `torch` holds them for every slot; `chunked` for `LOSS_CHUNK_TOKENS` of them, and the
    gathered hidden states with their gradient for all; Liger's has smaller chunks, and the head's whole gradient twice.
    """
    compute = BYTES[recipe.model.dtype]
    tokens = recipe.batching.tokens
    a_position = shape.vocab_size * (compute + 3 * FLOAT32_BYTES)
    if recipe.kernels.loss == "torch":
        return tokens * a_position
    hidden = 2 * tokens * shape.hidden_size * compute
    if recipe.kernels.loss == "liger":
        # As many positions a chunk as make its logits no larger than the hidden states; the weight's gradient in
        # float32, summed over chunks, and rounded.
        chunk = tokens / (shape.vocab_size / shape.hidden_size)
        weight_gradient = shape.vocab_size * shape.hidden_size * (FLOAT32_BYTES + compute)
        return chunk * shape.vocab_size * (compute + FLOAT32_BYTES) + hidden + weight_gradient
    return min(tokens, LOSS_CHUNK_TOKENS) * a_position + hidden
