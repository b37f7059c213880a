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
from sft_cli.kernels.importing import importing
from sft_cli.kernels.regions import Region, Regions, Rows, Weight
from sft_cli.plan.backends import TRITON


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


def stream_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    """The residual stream and its norm: of `residual` and what a branch adds to it, or of the stream alone.

    Args:
        x: (..., width).
        residual: as `x`; None where `x` is the stream.
        weight, eps, offset: as of `rms_norm`.

    Returns:
        The stream, to go on with in place of `x`; and its norm.
    """
    stream = x if residual is None else residual + x
    return stream, rms_norm(stream, weight, eps, offset)


def _own() -> Any:
    """The module `norm_triton.py`.

    Raises:
        KernelError: Triton can't be imported.
    """
    with importing(TRITON, slot="norm", instead="`norm: auto`"):
        from sft_cli.kernels import norm_triton

    return norm_triton


NORM: dict[str, Callable[[], Callable[..., Tensor]]] = {
    "sftune": lambda: _own().rms_norm,  # type: ignore[no-any-return]
    "liger": liger.load_norm,
    "torch": lambda: rms_norm,
}
"""Backend to what loads it."""
STREAM_NORM: dict[str, Callable[[], Callable[..., tuple[Tensor, Tensor]]]] = {
    "sftune": lambda: _own().stream_norm,  # type: ignore[no-any-return]
}
"""The same, of backends that take the residual stream's sums along; see `residual.py`."""


def install(modules: Iterable[nn.Module], *, backend: str, offset: float, regions: Regions | None = None) -> None:
    """Puts a backend on RMSNorm modules, by replacing their forward.

    Args:
        offset: see `rms_norm`.
        regions: compile it.

    Raises:
        KernelError: its package can't be imported.
    """
    norm = NORM[backend]()
    more = {"stream_norm": STREAM_NORM[backend]()} if backend in STREAM_NORM else {}
    for module in modules:
        eps = eps_of(module)
        compiled = None if regions is None else _region(module, norm, eps, offset, regions)
        module.forward = partial(  # type: ignore[method-assign]
            forward, module, norm=compiled or norm, eps=eps, offset=offset, **more
        )


def eps_of(module: nn.Module) -> float:
    """Of an RMSNorm, for which transformers has two names."""
    own = vars(module)
    eps: float = own["variance_epsilon"] if "variance_epsilon" in own else own["eps"]
    return eps


def forward(
    module: nn.Module,
    x: Tensor,
    residual: Tensor | None = None,
    *,
    goes_on: bool = False,
    norm: Callable[..., Tensor],
    stream_norm: Callable[..., tuple[Tensor, Tensor]] | None = None,
    eps: float,
    offset: float,
) -> Tensor | tuple[Tensor, Tensor]:
    """One RMSNorm of transformers.

    Args:
        goes_on: `x` and `residual` are the residual stream's, and it is returned, too; see `stream_norm`.
    """
    if goes_on:
        assert stream_norm is not None, "installed with a backend that has it"
        return stream_norm(x, residual, module.weight, eps, offset)
    if isinstance(norm, Region):
        return norm.over_tokens(x, module.weight)
    return norm(x, module.weight, eps, offset)


def _region(module: Any, norm: Callable[..., Tensor], eps: float, offset: float, regions: Regions) -> Region:
    def one_norm(x: Tensor, weight: Tensor) -> Tensor:
        return norm(x, weight, eps, offset)

    width = module.weight.shape[0]
    arguments = (Rows(width, are_heads=True), Weight((width,)))
    return regions.region("norm", one_norm, one_norm, arguments, eps, offset, called=norm)
