"""Precision beside FSDP2's own policy."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def compute_in(model: nn.Module, dtype: torch.dtype, device_type: str) -> None:
    """Lets matrix products of a model with float32 weights run in `dtype`, where FSDP2 does not see to it."""
    model.forward = torch.autocast(device_type, dtype)(model.forward)  # type: ignore[method-assign]


def keep_float32(parameters: Iterable[nn.Parameter]) -> None:
    """Makes float32 masters of these, whatever dtype the model was built in. On meta, before any value is there."""
    for parameter in parameters:
        parameter.data = parameter.data.float()
