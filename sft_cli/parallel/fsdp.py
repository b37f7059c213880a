"""FSDP2: which modules are gathered together, in what precision, and how gradients are summed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard


def shard(
    model: nn.Module,
    *,
    blocks: Sequence[nn.Module],
    embedding: nn.Module,
    head: nn.Module,
    tied: bool,
    mesh: DeviceMesh,
    compute_dtype: torch.dtype,
    reduce_dtype: torch.dtype,
    reshard_after_forward: bool | int,
) -> None:
    """Shards a model on meta: one group for each block, the embedding, the head (norm and projection), and the root.

    A tied weight belongs to both embedding and head; two groups can't share it, so it goes to the root's, which stays
    gathered from the first layer's forward to the end of backward.

    Args:
        mesh: one axis.
        compute_dtype: of gathered parameters and of activations.
        reduce_dtype: of the gradients' sum over ranks.
        reshard_after_forward: see `fully_shard`.
    """
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=reduce_dtype)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
    if not tied:
        fully_shard(embedding, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
        # Backward begins with the head: freeing it after forward would only gather it again at once.
        fully_shard(head, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    _sum_gradients(model)


def reshard(model: nn.Module) -> None:
    """Frees what a forward without a backward has left gathered: the head and the root, in the compute dtype.

    Until then `parameters()` are those copies, not what is trained and saved.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _sum_gradients(model: nn.Module) -> None:
    """Sums gradients over ranks instead of averaging: the loss is already divided by the global number of tokens.

    A divide factor of 1 alone becomes a pre-multiplied sum, which gloo refuses.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
