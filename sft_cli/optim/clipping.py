"""The norm of a gradient over all ranks, and clipping to it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float | None) -> Tensor:
    """Scales gradients down to `max_norm` where their global 2-norm is above it.

    Args:
        max_norm: None leaves them as they are.

    Returns:
        float32 scalar on the device: the norm before clipping. Not finite where a gradient is not.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    # In float32: `get_total_norm` rounds the norm of bfloat16 gradients to three digits.
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0, torch.float32)))
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if max_norm is not None:
        clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
