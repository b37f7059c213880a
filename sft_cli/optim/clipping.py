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
    sharded = [p for p in parameters if isinstance(p, DTensor)]
    whole = [p for p in parameters if not isinstance(p, DTensor)]  # on every rank, with the same gradient
    # torch's functions take only one kind at a time.
    norms = [_norm(kind) for kind in (sharded, whole) if kind]
    norm = (
        norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))
    )
    if max_norm is not None:
        for kind in (sharded, whole):
            clip_grads_with_norm_(kind, max_norm, norm)
    return norm


def _norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
