"""What of a plan's model is compiled or multiplied in float8, made before the model and given its weights after."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from sft_cli.kernels.float8 import Float8
from sft_cli.kernels.install import Layers
from sft_cli.kernels.linear import describe, is_float8
from sft_cli.kernels.manifest import describe_function
from sft_cli.kernels.regions import Region, Regions, Weight
from sft_cli.parallel.float8_gather import Float8Gather
from sft_cli.plan.float8 import NONE, why_not_gathered
from sft_cli.plan.plan import Plan


def plan_regions(plan: Plan, device: torch.device, say: Callable[[str], None]) -> Regions:
    """None of them yet: they come with the model's layers.

    Raises:
        KernelError: torchao can't be imported.
    """
    kernels = plan.recipe.kernels
    return Regions(
        compiles=kernels.compile,
        # A plan has float8 on GPUs only; a test may want to see it elsewhere.
        float8=None if kernels.float8 == NONE else Float8(kernels.float8, emulate=device.type == "cpu"),
        strict=kernels.strict,
        lengths_vary=plan.recipe.batching.mode == "padding",
        warn=say,
    )


def compile_regions(plan: Plan, regions: Regions, device: torch.device, say: Callable[[str], None]) -> None:
    """Compiles what there is to compile, before the model has its storage.

    Raises:
        KernelError: something can't be compiled, and `kernels.strict` is on.
    """
    if not regions.compiles:
        return
    recipe = plan.recipe
    dtype, masters = (getattr(torch, name) for name in (recipe.model.dtype, recipe.model.master_dtype))
    is_sharded = recipe.sharding.backend != "none"
    is_cast = not is_sharded and dtype != masters
    say(f"compiling {len(regions.by_key)} parts of the layers (kernels.compile)")
    began = time.monotonic()
    with torch.autocast(device.type, dtype) if is_cast else nullcontext():
        regions.try_out(
            recipe.batching.tokens,
            device=device,
            dtype=dtype,
            weight_dtype=dtype if is_sharded else masters,
            gathers_float8=why_not_gathered(recipe) is None,
            also_without_gradient=bool(recipe.data.eval),
        )
    if device.type == "cuda":
        torch.cuda.empty_cache()
    say(f"compiled them in {time.monotonic() - began:.0f} s")


def gather_in_float8(plan: Plan, layers: Layers, regions: Regions, mesh: DeviceMesh) -> Callable[[], None]:
    """Lets FSDP2 gather in float8 what is multiplied in it, if the plan says so; weights have their values.

    Returns:
        What to call whenever weights have changed.
    """
    if regions.float8 is None or why_not_gathered(plan.recipe) is not None:
        return lambda: None
    return gathering(layers, regions, mesh).refresh


def gathering(layers: Layers, regions: Regions, mesh: DeviceMesh) -> Float8Gather:
    """Of the sharded layers that are multiplied in float8."""
    assert regions.float8 is not None
    linears = [linear for linear in layers.linears.values() if is_float8(linear, regions)]
    return Float8Gather(linears, regions.float8, [_cast(regions, linear.weight) for linear in linears], mesh)


def describe_regions(plan: Plan, layers: Layers, regions: Regions) -> dict[str, Any]:
    """What kernels.json says of `float8` and `compile`; nothing where neither is on."""
    described: dict[str, Any] = {}
    kernels = plan.recipe.kernels
    if regions.float8 is not None:
        described["float8"] = {
            "asked": kernels.float8,
            "got": kernels.float8,
            **describe_function(regions.float8.matmul.forward),
            "gathered": "bfloat16" if why_not_gathered(plan.recipe) else "float8",
            "linears": describe(layers.linears, regions),
        }
    if regions.compiles:
        described["compile"] = {
            "asked": True,
            "got": True,
            **describe_function(torch.compile),
            "regions": [region.described() for region in regions.by_key.values()],
        }
    return described


def _cast(regions: Regions, weight: Tensor) -> Region:
    """One for each shape of shard: compiled, it is one kernel in place of three passes over the master."""
    float8 = regions.float8
    assert float8 is not None
    assert isinstance(weight, DTensor), "gathering begins with the shards"
    local = weight.to_local()

    def cast(shard: Tensor, scale: Tensor) -> Tensor:
        return float8.cast(shard, scale)

    return regions.region("cast", cast, cast, (Weight(tuple(local.shape), dtype=local.dtype),), called=float8.cast)
