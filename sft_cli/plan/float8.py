"""`kernels.float8`: which linear layers it is for, what it needs, and what the plan says of it."""

from __future__ import annotations

from collections.abc import Iterator

from sft_cli.plan.architecture import Architecture
from sft_cli.plan.backends import Package
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.hindrances import Hindrance, missing
from sft_cli.plan.model_types import GENERIC
from sft_cli.plan.plan import Choice
from sft_cli.recipe.problems import Problem
from sft_cli.recipe.schema import Recipe

NONE = "none"
TORCHAO = Package("torchao", "torchao", "torchao", "pip install 'torchao>=0.18'", (0, 18))
ADA = (8, 9)
"""The oldest compute capability with float8 matrix products."""

STEP = 16
"""Sides of a float8 matrix product come in multiples of this."""
SMALLEST_SIDE = 1024
"""Of a weight. Below, casting the operands costs about what the product saves: in_proj_a and in_proj_b of a Gated
DeltaNet (one row a head), the heads of a small model's keys and values."""


def why_not(rows: int, columns: int, smallest_side: int = SMALLEST_SIDE) -> str | None:
    """Why a linear layer's products stay in the compute dtype; None where they run in float8.

    Args:
        rows, columns: of its weight.
    """
    if rows % STEP or columns % STEP:
        return f"a side is no multiple of {STEP}"
    if min(rows, columns) < smallest_side:
        return f"a side is under {smallest_side:,}"
    return None


def float8_numbers(shape: Architecture, layer: int) -> int:
    """Parameters of one layer that are multiplied in float8."""
    hidden, delta = shape.hidden_size, shape.delta_net
    if shape.linear_attention[layer]:
        assert delta is not None, "a linear-attention layer without its shape"
        sides = [delta.conv_dim, delta.value_dim, delta.value_dim]
    else:
        queries = shape.query_dim * (2 if shape.gated_attention else 1)
        sides = [queries, shape.key_value_dim, shape.key_value_dim, shape.query_dim]
    if not shape.sparse[layer]:
        sides += 3 * [shape.intermediate_size]
    elif shape.experts is not None:
        sides += 3 * [shape.experts.shared_intermediate_size]
    return sum(side * hidden for side in sides if why_not(side, hidden) is None)


def why_not_gathered(recipe: Recipe) -> str | None:
    """Why FSDP2 gathers the weights in the compute dtype, to be cast where they are used; None where it gathers float8.

    Cast before the gathering, they are cast once and not at each use, and half as many bytes are sent.
    """
    sharding = recipe.sharding
    if recipe.kernels.float8 == NONE or sharding.backend == "none":
        return "nothing is gathered"
    if recipe.kernels.float8 == "rowwise":
        return "rowwise, forward and backward cast a weight along different sides"
    if sharding.cpu_offload:
        return "with cpu_offload the GPU gets the masters"
    if sharding.buffers == "preallocated":
        return "preallocated buffers are of one dtype"
    if not isinstance(sharding.reshard_after_forward, bool):
        return "FSDP2 can't reshard float8 to smaller groups"
    return None


def float8_problems(recipe: Recipe, shape: Architecture, hardware: Hardware) -> Iterator[Problem]:
    """Why the machine or the model can't do it; found before anything is loaded."""
    name = recipe.kernels.float8
    if name == NONE:
        return
    hindrance = _hindrance(recipe, shape, hardware)
    if hindrance is not None:
        yield Problem("kernels.float8", f"`{name}` can't run here: {hindrance.what}", hindrance.remedy)


def float8_choices(recipe: Recipe) -> list[Choice]:
    """What `tensorwise` or `rowwise` means for this recipe."""
    name = recipe.kernels.float8
    if name == NONE:
        return []
    scales = "one scale a tensor" if name == "tensorwise" else "one scale a row or column"
    reason = why_not_gathered(recipe)
    gathered = "weights are gathered in float8" if reason is None else f"weights are cast where they are used: {reason}"
    because = (
        f"asked for; {scales}, in linear layers whose sides are multiples of {STEP} from {SMALLEST_SIDE:,} on, never "
        f"in the head; {gathered}"
    )
    if not recipe.kernels.compile:
        because += "; without `compile: true` the casts are kernels of their own, and may cost more than it saves"
    return [Choice(key="kernels.float8", value=name, because=because)]


def _hindrance(recipe: Recipe, shape: Architecture, hardware: Hardware) -> Hindrance | None:
    off = "Write `float8: none`."
    if not hardware.gpus and not hardware.named:
        return Hindrance("it needs a GPU, and none is visible", off)
    capability = hardware.compute_capability
    if capability is not None and capability < ADA:
        has, needs = (".".join(map(str, version)) for version in (capability, ADA))
        what = f"compute capability {has}, and float8 matrix products need {needs}"
        return Hindrance(what, f"{off} Or train on a newer GPU.")
    if (absent := missing(hardware, TORCHAO)) is not None:
        return Hindrance(absent.what, f"{absent.remedy} Or write `float8: none`.")
    if shape.family == GENERIC:
        return Hindrance("a model without a family of its own keeps its own modules", off)
    return None
