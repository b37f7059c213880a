"""The slot `gated_norm`: RMSNorm of the delta rule's output, times SiLU of a gate.

Its `torch` is the model's own module, and installs nothing; `gated_rms_norm` is what that computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sft_cli.kernels import fla


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


GATED_NORM = {"fla": fla.load_gated_norm, "torch": lambda: gated_rms_norm}
"""Backend to what loads it."""


def install(modules: Iterable[nn.Module], *, backend: str) -> None:
    """Puts a backend on gated RMSNorm modules, by replacing their forward.

    Raises:
        KernelError: its package can't be imported.
    """
    gated_norm = GATED_NORM[backend]()
    for module in modules:
        module.forward = partial(forward, module, gated_norm=gated_norm)  # type: ignore[method-assign]


def forward(module: nn.Module, x: Tensor, gate: Tensor, *, gated_norm: Callable[..., Tensor]) -> Tensor:
    """One gated RMSNorm of transformers."""
    return gated_norm(x, gate, module.weight, module.variance_epsilon)
