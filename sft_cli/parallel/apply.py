"""Everything that is done to a model between meta and its first step, in the one order that works."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.parallel.activation_checkpointing import checkpoint_layers
from sft_cli.parallel.fsdp import shard
from sft_cli.parallel.precision import compute_in, keep_float32
from sft_cli.parallel.reduction import GradientReduction
from sft_cli.recipe.schema import ShardingSection


def parallelise(
    model: nn.Module,
    sharding: ShardingSection,
    *,
    blocks: Sequence[nn.Module],
    embedding: nn.Module,
    head: nn.Module,
    tied: bool,
    float32: Sequence[nn.Parameter],
    mesh: DeviceMesh,
    compute_dtype: torch.dtype,
    updates_in_backward: bool = False,
) -> GradientReduction:
    """Activation checkpointing, then sharding. Kernels are installed before this, storage comes after.

    Args:
        model: on meta.
        blocks, embedding, head: its parts.
        tied: whether head and embedding share their weight.
        float32: parameters that are trained and computed with in float32, whatever the dtypes of the others.
        mesh: see `build_mesh`.
        updates_in_backward: no gradient waits for the end of backward.

    Returns:
        How a step's gradients come together over ranks.
    """
    checkpoint_layers(blocks, sharding.activation_checkpointing)
    keep_float32(float32)
    ignored = set(float32)
    if sharding.backend == "none":
        if any(p.dtype != compute_dtype for p in model.parameters() if p not in ignored):
            compute_in(model, compute_dtype, mesh.device_type)
        return GradientReduction.of_one_process()
    whole = [name for name, parameter in model.named_parameters() if parameter in ignored]
    shard(
        model,
        sharding,
        blocks=blocks,
        embedding=embedding,
        head=head,
        tied=tied,
        ignored=ignored,
        mesh=mesh,
        compute_dtype=compute_dtype,
        updates_in_backward=updates_in_backward,
    )
    return GradientReduction(model, whole, defer=sharding.defer_reduce)
