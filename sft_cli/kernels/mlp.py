"""The slot `mlp`: what lies between the projections of a SwiGLU MLP (Shazeer 2020).

Its `torch` is the model's own module, and installs nothing; `silu_mul` is what that computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from sft_cli.kernels import liger


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up.

    Args:
        gate: (..., intermediate), any float dtype.
        up: as `gate`.

    Returns:
        As `gate`.
    """
    return F.silu(gate) * up


MLP = {"liger": liger.load_silu_mul, "torch": lambda: silu_mul}
"""Backend to what loads it."""


def install(modules: Iterable[nn.Module], *, backend: str) -> None:
    """Puts a backend between the projections of SwiGLU modules, by replacing their forward.

    Raises:
        KernelError: its package can't be imported.
    """
    product = MLP[backend]()
    for module in modules:
        module.forward = partial(forward, module, silu_mul=product)  # type: ignore[method-assign]


def forward(module: Any, x: Tensor, *, silu_mul: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """One SwiGLU MLP of transformers."""
    out: Tensor = module.down_proj(silu_mul(module.gate_proj(x), module.up_proj(x)))
    return out
