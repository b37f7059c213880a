"""Linear layers whose products run in float8, and the SwiGLU MLP compiled with its projections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from sft_cli.kernels.mlp import silu_mul
from sft_cli.kernels.regions import Argument, Region, Regions, Rows, Weight
from sft_cli.plan.float8 import why_not

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def is_float8(linear: nn.Linear, regions: Regions) -> bool:
    """Whether its products run in float8."""
    if regions.float8 is None:
        return False
    return why_not(*linear.weight.shape, regions.smallest_side) is None


def install_float8(linears: Iterable[nn.Linear], regions: Regions) -> None:
    """Gives those that are large enough a forward in float8."""
    for linear in linears:
        if is_float8(linear, regions):
            region = _linear_region(linear, regions)
            linear.forward = partial(forward, linear, region=region)  # type: ignore[method-assign]


def forward(linear: nn.Linear, x: Tensor, *, region: Region) -> Tensor:
    """One `nn.Linear`."""
    return region.over_tokens(x, linear.weight, linear.bias)


def install_compiled_mlp(
    modules: Iterable[nn.Module], regions: Regions, expensive: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Makes a region of each SwiGLU module, its projections included.

    Args:
        expensive: what is made of the whole: activation checkpointing does not see the products inside of it.
    """
    run = expensive(_whole)
    for module in modules:
        region = _mlp_region(module, regions)
        module.forward = partial(mlp_forward, module, silu_mul=region, run=run)  # type: ignore[method-assign]


def mlp_forward(module: nn.Module, x: Tensor, *, silu_mul: Region, run: Callable[..., Tensor]) -> Tensor:
    """One SwiGLU MLP of transformers."""
    return run(module, x, silu_mul)


def describe(linears: Mapping[str, nn.Linear], regions: Regions) -> dict[str, Any]:
    """Which linear layers run in float8, for kernels.json: each kind with its shape and how many there are."""
    described: dict[str, dict[str, Any]] = {"float8": {}, "kept": {}}
    for name, linear in linears.items():
        kind = ".".join("*" if part.isdigit() else part for part in name.split("."))
        part = described["float8" if is_float8(linear, regions) else "kept"]
        entry = part.setdefault(kind, {"layers": 0, "shape": list(linear.weight.shape)})
        entry["layers"] += 1
        if part is described["kept"]:
            entry["because"] = why_not(*linear.weight.shape, regions.smallest_side)
    return described


def _whole(module: Any, x: Tensor, region: Region) -> Tensor:
    gate, up, down = module.gate_proj, module.up_proj, module.down_proj
    return region.over_tokens(x, gate.weight, up.weight, down.weight, gate.bias, up.bias, down.bias)


def _linear_region(linear: nn.Linear, regions: Regions) -> Region:
    assert regions.float8 is not None
    product, plain = regions.float8.linear, regions.float8.linear_without

    def linear_in_float8(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return product(x, weight, bias)

    arguments = (Rows(linear.in_features), *_weights([linear], regions))
    return regions.region("linear", linear_in_float8, plain, arguments, multiplies=True)


def _mlp_region(module: Any, regions: Regions) -> Region:
    linears = [module.gate_proj, module.up_proj, module.down_proj]
    gate_product, up_product, down_product = (_product(linear, regions) for linear in linears)
    plain_product = F.linear if regions.float8 is None else regions.float8.linear_without

    def swiglu(
        x: Tensor, gate: Tensor, up: Tensor, down: Tensor, gate_bias: Any, up_bias: Any, down_bias: Any
    ) -> Tensor:
        product = silu_mul(gate_product(x, gate, gate_bias), up_product(x, up, up_bias))
        return down_product(product, down, down_bias)

    def plain(
        x: Tensor, gate: Tensor, up: Tensor, down: Tensor, gate_bias: Any, up_bias: Any, down_bias: Any
    ) -> Tensor:
        product = silu_mul(plain_product(x, gate, gate_bias), plain_product(x, up, up_bias))
        return plain_product(product, down, down_bias)

    weights = _weights(linears, regions)
    arguments = (Rows(module.gate_proj.in_features), *weights)
    return regions.region("mlp", swiglu, plain, arguments, called=silu_mul, multiplies=True)


def _product(linear: nn.Linear, regions: Regions) -> Product:
    return regions.float8.linear if regions.float8 is not None and is_float8(linear, regions) else F.linear


def _weights(linears: list[nn.Linear], regions: Regions) -> list[Argument]:
    """All weights, then all biases."""
    biases = [None if linear.bias is None else Weight(tuple(linear.bias.shape)) for linear in linears]
    return [*(Weight(tuple(linear.weight.shape), is_float8(linear, regions)) for linear in linears), *biases]
