"""The norm of a gradient over all ranks, and clipping to it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float | None) -> Tensor:
    """Scales gradients down to `max_norm` where their global 2-norm is above it.

    Args:
        max_norm: None leaves them as they are.

    Returns:
        float32 scalar on the device: the norm before clipping. Not finite where a gradient is not.
    """
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if max_norm is not None:
        clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
