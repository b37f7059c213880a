"""The slot `gated_norm`: RMSNorm of the delta rule's output, times SiLU of a gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sft_cli.kernels import fla
from sft_cli.kernels.backend import Backend, Supports


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight * silu(gate): normalised first, gated after, as Qwen3-Next's module does.

    Args:
        x: (..., head dim), any float dtype.
        gate: as `x`.
        weight: (head dim,).
        eps: added to the mean square.

    Returns:
        As `x`; norm and gate are computed in float32.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (weight * wide.to(x.dtype) * F.silu(gate.float())).to(x.dtype)


BACKENDS = (
    Backend(
        "fla", "fla-core", "fla", fla.INSTALL,
        Supports(devices=("cuda",), compute_capability=(8, 0)), fla.load_gated_norm,
    ),
    Backend("torch", "torch", "torch", None, Supports(), lambda: gated_rms_norm),
)  # fmt: skip
"""Fastest first."""
