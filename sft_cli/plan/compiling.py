"""`kernels.compile`: which parts of a layer torch.compile makes one kernel of, and what that needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from sft_cli.plan.hardware import Hardware
from sft_cli.plan.plan import Choice
from sft_cli.recipe.problems import Problem
from sft_cli.recipe.schema import KernelsSection, Recipe

REGIONS = {
    "mlp": "a SwiGLU MLP with its three projections, where `mlp` is `torch`, which `auto` then takes",
    "linear": "a float8 linear layer outside of such an MLP, with the casts of its operands",
    "cast": "a float8 weight's cast before it is gathered",
    "norm": "an RMSNorm, where `norm` is `torch`",
    "gated_norm": "the gated RMSNorm after the delta rule, where `gated_norm` is `torch`",
    "gates": "decay and beta of the delta rule",
}
"""What is compiled: token by token arithmetic between kernels that are fast already. Not in it: the delta rule, the
convolution and attention, which are kernels of their own, and the head, whose number of rows differs in each batch."""


def regions_of(kernels: KernelsSection, slots: tuple[str, ...]) -> list[str]:
    """The names of `REGIONS` that a model's layers have.

    Args:
        kernels: no `auto` left.
        slots: the kernel slots that it has.
    """
    if not kernels.compile:
        return []
    float8 = kernels.float8 != "none"
    has = {
        "mlp": "mlp" in slots and kernels.mlp == "torch",
        "linear": float8,
        "cast": kernels.float8 == "tensorwise",
        "norm": kernels.norm == "torch",
        "gated_norm": "gated_norm" in slots and kernels.gated_norm == "torch",
        "gates": "linear_attention" in slots,
    }
    return [name for name in REGIONS if has[name]]


def compile_problems(recipe: Recipe, hardware: Hardware) -> Iterator[Problem]:
    """What torch.compile lacks on this machine. Without `kernels.strict` the run finds out, and does without."""
    if not recipe.kernels.compile or not recipe.kernels.strict or hardware.named:
        return
    if hardware.gpus and "triton" not in hardware.packages:
        yield Problem("kernels.compile", "Triton is not installed", "pip install triton; or write `compile: false`.")
    elif not hardware.gpus and not _has_cpp_compiler():
        fix = "Install one (`apt-get install g++`), or write `compile: false`."
        yield Problem("kernels.compile", "no C++ compiler is at hand, and without a GPU torch.compile needs one", fix)


def compile_choices(kernels: KernelsSection, slots: tuple[str, ...]) -> list[Choice]:
    """What `compile: true` means for this model."""
    if not kernels.compile:
        return []
    names = regions_of(kernels, slots)
    because = f"asked for; one kernel, or few, of each of: {', '.join(names)}" if names else "nothing here gains by it"
    return [Choice(key="kernels.compile", value=True, because=because)]


def _has_cpp_compiler() -> bool:
    """Whether Inductor will find one: it takes CXX, else g++."""
    return shutil.which(os.environ.get("CXX") or "g++") is not None
