"""Tensors that may be spread over ranks."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor


def whole(tensor: Tensor) -> Tensor:
    """A copy of all of it, on every rank; A_log and dt_bias are whole on each already."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def own(tensor: Tensor) -> Tensor:
    """What this rank holds of it: the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
