"""FSDP2: which modules are gathered together, in what precision, and how gradients are summed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from sft_cli.parallel.buffers import preallocate
from sft_cli.parallel.prefetch import gather_ahead
from sft_cli.recipe.schema import ShardingSection


def shard(
    model: nn.Module,
    sharding: ShardingSection,
    *,
    blocks: Sequence[nn.Module],
    embedding: nn.Module,
    head: nn.Module,
    tied: bool,
    ignored: set[nn.Parameter],
    mesh: DeviceMesh,
    compute_dtype: torch.dtype,
    updates_in_backward: bool = False,
) -> None:
    """Shards a model on meta: one group for each block, the embedding, the head (norm and projection), and the root.

    A tied weight belongs to both embedding and head; two groups can't share it, so it goes to the root's, which stays
    gathered from the first layer's forward to the end of backward.

    Args:
        ignored: parameters that stay whole on every rank. A group has one dtype, and they have another.
        mesh: one axis, or replicas times shards.
        compute_dtype: of gathered parameters and of activations.
        updates_in_backward: no gradient waits for the end of backward.
    """
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=getattr(torch, sharding.reduce_dtype))
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu") if sharding.cpu_offload else OffloadPolicy()

    def group(module: nn.Module, *, reshard_after_forward: bool | int) -> FSDPModule:
        return fully_shard(
            module,
            mesh=mesh,
            mp_policy=policy,
            offload_policy=offload,
            ignored_params=ignored,
            reshard_after_forward=reshard_after_forward,
        )

    sizes = [_gathered_elements(block, ignored, mesh.size(mesh.ndim - 1)) for block in blocks]
    layers = [group(block, reshard_after_forward=sharding.reshard_after_forward) for block in blocks]
    in_order = layers
    if not tied:
        first = group(embedding, reshard_after_forward=sharding.reshard_after_forward)
        # The gradient of a lookup needs no table: it is not gathered again for backward.
        first.set_unshard_in_backward(False)
        # Backward begins with the head: freeing it after forward would only gather it again at once.
        last = group(head, reshard_after_forward=False)
        in_order = [first, *layers, last]
    root = group(model, reshard_after_forward=False)
    gather_ahead(root, in_order, sharding.prefetch)
    if sharding.buffers == "preallocated":
        preallocate(
            layers,
            gathered_elements=max(sizes),
            prefetch=sharding.prefetch,
            gradients_stay=not updates_in_backward,
        )
    if mesh.size() > 1:
        # A rank alone has nothing to sum, and with a divide factor FSDP2 would make its quotient in more memory.
        _sum_gradients(model)


def reshard(model: nn.Module) -> None:
    """Frees what a forward without a backward has left gathered: the head and the root, in the compute dtype.

    Until then `parameters()` are those copies, not what is trained and saved.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _gathered_elements(block: nn.Module, ignored: set[nn.Parameter], shards: int) -> int:
    """Of a block's group, with the rows that FSDP2 adds so that every rank holds as many."""
    return sum(
        -(-parameter.shape[0] // shards) * shards * (parameter.numel() // parameter.shape[0])
        for parameter in block.parameters()
        if parameter not in ignored
    )


def _sum_gradients(model: nn.Module) -> None:
    """Sums gradients over ranks instead of averaging: the loss is already divided by the global number of tokens.

    A divide factor of 1 alone becomes a pre-multiplied sum, which gloo refuses.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
