"""How long a run may take: from speeds that were measured, and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from sft_cli.plan.gpus import peak_bf16_tflops
from sft_cli.plan.plan import Plan


@dataclass(frozen=True)
class Measured:
    """Model FLOPs utilisation of one GPU, of real tokens in packs."""

    gpu: str
    family: str
    parameters: float
    tokens: int
    """Slots of a micro-batch."""
    checkpointing: str
    slowest: float
    fastest: float
    source: str


MEASURED = (
    Measured(
        "NVIDIA H200", "qwen3_5", 26.9e9, 8192, "full", 0.338, 0.416,
        "Qwen3.8-27B's shapes on one H200 by a script before sftune, the slower and the faster kernels",
    ),
    Measured(
        "NVIDIA H200", "qwen3_5", 0.75e9, 8192, "none", 0.150, 0.161,
        "Qwen3.5-0.8B's shapes on one H200, the slower and the faster kernels",
    ),
    Measured(
        "NVIDIA H200", "qwen3_5", 0.75e9, 32768, "none", 0.269, 0.269, "Qwen3.5-0.8B's shapes on one H200"
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Speed:
    """Of all GPUs together. What is None is not known."""

    tokens_per_second: tuple[float | None, float | None]
    """At least, at most."""
    hours: tuple[float | None, float | None]
    """The same, so from the fastest to the slowest."""
    because: str


_UNKNOWN: tuple[None, None] = (None, None)


def estimate_speed(plan: Plan) -> Speed:
    """What was measured of the same model on the same GPU, scaled to this plan's FLOPs a token and number of GPUs.

    Of several GPUs only the upper bound is known: what they lose to communication was not measured.
    """
    world, found = plan.world, _measured(plan)
    peak = peak_bf16_tflops(world.gpu_name) if world.gpu_name is not None else None
    if found is None or peak is None:
        where = world.gpu_name or "a CPU"
        return Speed(_UNKNOWN, _UNKNOWN, f"no speed was measured for this model and these settings on {where}")
    per_mfu = peak * 1e12 * world.ranks / plan.flops_per_token
    at_most = per_mfu * found.fastest
    at_least = per_mfu * found.slowest if world.ranks == 1 else None
    because = f"measured: {found.source}"
    if world.ranks > 1:
        because += f"; times {world.ranks}, and what communication costs is not known"
    if plan.steps is None:
        return Speed((at_least, at_most), _UNKNOWN, because)
    tokens = plan.steps * plan.tokens_per_step
    slowest = None if at_least is None else tokens / at_least / 3600
    return Speed((at_least, at_most), (tokens / at_most / 3600, slowest), because)


def _measured(plan: Plan) -> Measured | None:
    recipe, checkpointing = plan.recipe, plan.recipe.sharding.activation_checkpointing
    is_usual = (
        recipe.model.dtype == "bfloat16"
        and recipe.batching.mode == "packing"
        and recipe.kernels.linear_attention != "torch"
        and recipe.kernels.float8 == "none"
        and not recipe.kernels.compile
        and not recipe.sharding.cpu_offload
        and not checkpointing.offload
        and (checkpointing.mode == "none" or checkpointing.layers == "all")
    )
    if not is_usual:
        return None
    for known in MEASURED:
        is_same = (known.gpu, known.family, known.tokens, known.checkpointing) == (
            plan.world.gpu_name, plan.model.family, recipe.batching.tokens, checkpointing.mode,
        )  # fmt: skip
        if is_same and abs(plan.model.parameters / known.parameters - 1) < 0.1:
            return known
    return None
