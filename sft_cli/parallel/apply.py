"""Everything that is done to a model between meta and its first step, in the one order that works."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.parallel.activation_checkpointing import checkpoint_layers
from sft_cli.parallel.fsdp import shard
from sft_cli.parallel.precision import compute_in
from sft_cli.recipe.schema import ShardingSection


def parallelise(
    model: nn.Module,
    sharding: ShardingSection,
    *,
    blocks: Sequence[nn.Module],
    embedding: nn.Module,
    head: nn.Module,
    tied: bool,
    mesh: DeviceMesh,
    compute_dtype: torch.dtype,
) -> None:
    """Activation checkpointing, then sharding. Kernels are installed before this, storage comes after."""
    checkpoint_layers(blocks, sharding.activation_checkpointing)
    if sharding.backend == "fsdp2":
        shard(
            model,
            blocks=blocks,
            embedding=embedding,
            head=head,
            tied=tied,
            mesh=mesh,
            compute_dtype=compute_dtype,
            reduce_dtype=getattr(torch, sharding.reduce_dtype),
            reshard_after_forward=sharding.reshard_after_forward,
        )
    elif compute_dtype != torch.float32:
        compute_in(model, compute_dtype, mesh.device_type)
