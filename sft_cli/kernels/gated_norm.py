"""The slot `gated_norm`: RMSNorm of the delta rule's output, times SiLU of a gate.

Its `torch` is the model's own module, and installs nothing; `gated_rms_norm` is what that computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sft_cli.kernels import fla
from sft_cli.kernels.regions import Region, Regions, Rows, Weight


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


def install(modules: Iterable[nn.Module], *, backend: str, regions: Regions | None = None) -> None:
    """Puts a backend on gated RMSNorm modules, by replacing their forward.

    Args:
        regions: compile it.

    Raises:
        KernelError: its package can't be imported.
    """
    gated_norm = GATED_NORM[backend]()
    for module in modules:
        compiled = None if regions is None else _region(module, gated_norm, regions)
        module.forward = partial(forward, module, gated_norm=compiled or gated_norm)  # type: ignore[method-assign]


def forward(module: nn.Module, x: Tensor, gate: Tensor, *, gated_norm: Callable[..., Tensor]) -> Tensor:
    """One gated RMSNorm of transformers."""
    if isinstance(gated_norm, Region):
        return gated_norm(x, gate, module.weight)
    return gated_norm(x, gate, module.weight, module.variance_epsilon)


def _region(module: Any, gated_norm: Callable[..., Tensor], regions: Regions) -> Region:
    eps, width = module.variance_epsilon, module.weight.shape[0]

    def one_gated_norm(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
        return gated_norm(x, gate, weight, eps)

    arguments = (Rows(width, are_heads=True), Rows(width, are_heads=True), Weight((width,)))
    return regions.region("gated_norm", one_gated_norm, one_gated_norm, arguments, eps, called=gated_norm)
