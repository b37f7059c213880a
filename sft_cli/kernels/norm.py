"""The slot `norm`: RMSNorm (Zhang and Sennrich 2019), with the weight as it is or as a distance from 1."""

from __future__ import annotations

import torch
from torch import Tensor

from sft_cli.kernels import liger
from sft_cli.kernels.backend import Backend, Supports


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """x / rms(x) * (offset + weight), computed in float32 as the modules of transformers do.

    Args:
        x: (..., width), any float dtype.
        weight: (width,).
        eps: added to the mean square.
        offset: 1.0 where the weight is a distance from 1 (Qwen3.5, Qwen3-Next, Gemma), else 0.0.

    Returns:
        As `x`. With an offset it is rounded once, at the end; without one the normalised vector is rounded and then
        multiplied, as in Llama's module.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if offset:
        return (wide * (offset + weight.float())).to(x.dtype)
    return weight * wide.to(x.dtype)


BACKENDS = (
    Backend("liger", "liger-kernel", "liger_kernel", liger.INSTALL, Supports(devices=("cuda",)), liger.load_norm),
    Backend("torch", "torch", "torch", None, Supports(), lambda: rms_norm),
)
"""Fastest first."""
