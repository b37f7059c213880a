"""Tensors that may be spread over ranks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def whole(tensor: Tensor) -> Tensor:
    """A copy of all of it, on every rank; A_log and dt_bias are whole on each already."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def own(tensor: Tensor) -> Tensor:
    """What this rank holds of it: the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def off(found: Tensor, expected: Tensor) -> float:
    """As a share of the 2-norm; as it is where nothing is expected."""
    found, expected = found.detach().double(), expected.detach().double()
    difference, scale = float((found - expected).norm()), float(expected.norm())
    return difference / scale if scale else difference


def largest(differences: Iterable[float]) -> float:
    """NaN where one of them is: `max` passes over one that is not the first."""
    return float(torch.tensor([*differences], dtype=torch.float64).max())
