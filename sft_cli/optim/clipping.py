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
        float32 scalar where the gradients are: the norm before clipping. Not finite where a gradient is not.
    """
    with_gradient = [p for p in parameters if p.grad is not None]
    sharded = [p for p in with_gradient if isinstance(p, DTensor)]
    whole = [p for p in with_gradient if not isinstance(p, DTensor)]  # with the same gradient on every rank
    # torch's functions take one kind at a time.
    kinds = [kind for kind in (sharded, whole) if kind]
    norms = [_norm(kind) for kind in kinds]
    norm = torch.linalg.vector_norm(torch.stack([one.to(norms[0].device) for one in norms]))
    if max_norm is not None:
        for kind in kinds:
            clip_grads_with_norm_(kind, max_norm, norm)
    return norm


def _norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    gradients = [p.grad for p in parameters]
    # In float32: `get_total_norm` rounds the norm of bfloat16 gradients to three digits.
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0, torch.float32)))
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
