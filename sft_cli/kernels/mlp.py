"""The slot `mlp`: what lies between the projections of a SwiGLU MLP (Shazeer 2020)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from sft_cli.kernels import liger
from sft_cli.kernels.backend import Backend, Supports


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up.

    Args:
        gate: (..., intermediate), any float dtype.
        up: as `gate`.

    Returns:
        As `gate`.
    """
    return F.silu(gate) * up


BACKENDS = (
    Backend("liger", "liger-kernel", "liger_kernel", liger.INSTALL, Supports(devices=("cuda",)), liger.load_silu_mul),
    Backend("torch", "torch", "torch", None, Supports(), lambda: silu_mul),
)
"""Fastest first."""
