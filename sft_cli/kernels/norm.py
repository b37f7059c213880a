"""The slot `norm`: RMSNorm (Zhang and Sennrich 2019), with the weight as it is or as a distance from 1.

Its `torch` is the model's own module, and installs nothing; `rms_norm` is what that computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sft_cli.kernels import liger
from sft_cli.kernels.regions import Region, Regions, Rows, Weight


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


NORM = {"liger": liger.load_norm, "torch": lambda: rms_norm}
"""Backend to what loads it."""


def install(modules: Iterable[nn.Module], *, backend: str, offset: float, regions: Regions | None = None) -> None:
    """Puts a backend on RMSNorm modules, by replacing their forward.

    Args:
        offset: see `rms_norm`.
        regions: compile it.

    Raises:
        KernelError: its package can't be imported.
    """
    norm = NORM[backend]()
    for module in modules:
        # transformers has two names for it.
        own = vars(module)
        eps = own["variance_epsilon"] if "variance_epsilon" in own else own["eps"]
        compiled = None if regions is None else _region(module, norm, eps, offset, regions)
        module.forward = partial(  # type: ignore[method-assign]
            forward, module, norm=compiled or norm, eps=eps, offset=offset
        )


def forward(module: nn.Module, x: Tensor, *, norm: Callable[..., Tensor], eps: float, offset: float) -> Tensor:
    """One RMSNorm of transformers."""
    if isinstance(norm, Region):
        return norm.over_tokens(x, module.weight)
    return norm(x, module.weight, eps, offset)


def _region(module: Any, norm: Callable[..., Tensor], eps: float, offset: float, regions: Regions) -> Region:
    def one_norm(x: Tensor, weight: Tensor) -> Tensor:
        return norm(x, weight, eps, offset)

    width = module.weight.shape[0]
    arguments = (Rows(width, are_heads=True), Weight((width,)))
    return regions.region("norm", one_norm, one_norm, arguments, eps, offset, called=norm)
