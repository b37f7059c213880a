"""Mixed precision without FSDP2, whose own policy does this otherwise."""

from __future__ import annotations

import torch
from torch import nn


def compute_in(model: nn.Module, dtype: torch.dtype, device_type: str) -> None:
    """Lets matrix products of a model with float32 weights run in `dtype`."""
    model.forward = torch.autocast(device_type, dtype)(model.forward)  # type: ignore[method-assign]
