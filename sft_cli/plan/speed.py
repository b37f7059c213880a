"""How long a run may take: from speeds that were measured, and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from sft_cli.plan.gpus import peak_bf16_tflops
from sft_cli.plan.plan import Plan


@dataclass(frozen=True)
class Measured:
    """Model FLOPs utilisation, of real tokens in packs."""

    gpu: str
    family: str
    parameters: float
    tokens: int
    """Slots of a micro-batch."""
    full: float
    """Share of the layers that backward computes again."""
    selective: float
    """Share of the layers of which it computes the cheap parts again."""
    slowest: float
    fastest: float
    source: str
    ranks: int = 1
    delta_rule: str | None = None
    """Backend of `linear_attention`; None: any but torch's."""


_H200, _QLA = "NVIDIA H200", "flash_qla"
MEASURED = (
    Measured(
        _H200, "qwen3_5", 26.9e9, 8192, 0.0, 1.0, 0.557, 0.591,
        "Qwen3.8-27B's shapes on one H200, moments in host memory, five runs", delta_rule=_QLA,
    ),
    Measured(
        _H200, "qwen3_5", 26.9e9, 8192, 0.11, 0.89, 0.500, 0.576,
        "Qwen3.8-27B's shapes on one H200, moments in host memory, six runs", delta_rule=_QLA,
    ),
    Measured(
        _H200, "qwen3_5", 26.9e9, 4096, 0.0, 0.0, 0.435, 0.469,
        "three steps of Qwen3.8-27B's shapes on one H200, moments in host memory", delta_rule=_QLA,
    ),
    Measured(
        _H200, "qwen3_5", 26.9e9, 16384, 0.59, 0.41, 0.519, 0.524,
        "three steps of Qwen3.8-27B's shapes on one H200, moments in host memory", delta_rule=_QLA,
    ),
    Measured(
        _H200, "qwen3_5", 26.9e9, 2048, 0.0, 0.66, 0.359, 0.417, "Qwen3.8-27B's shapes on one H200", delta_rule=_QLA
    ),
    Measured(
        _H200, "qwen3_5", 26.9e9, 32768, 0.84, 0.16, 0.507, 0.511,
        "Qwen3.8-27B's shapes on one H200, moments in host memory", delta_rule=_QLA,
    ),
    Measured(
        _H200, "qwen3_5", 26.9e9, 8192, 1.0, 0.0, 0.405, 0.441,
        "Qwen3.8-27B's shapes on one H200, before today's loss, norms and update", delta_rule=_QLA,
    ),
    Measured(
        _H200, "qwen3_5", 26.9e9, 8192, 0.0, 0.59, 0.493, 0.527,
        "Qwen3.8-27B's shapes on two H200, moments in host memory, five runs", ranks=2, delta_rule=_QLA,
    ),
    Measured(
        _H200, "qwen3_5", 9.0e9, 8192, 0.0, 0.0, 0.545, 0.615, "Qwen3.5-9B's shapes on one H200", delta_rule=_QLA
    ),
    Measured(
        _H200, "qwen3_5", 9.0e9, 8192, 0.0, 0.0, 0.467, 0.505,
        "Qwen3.5-9B's shapes on two H200", ranks=2, delta_rule=_QLA,
    ),
    Measured(
        _H200, "qwen3_5", 9.0e9, 2048, 0.0, 0.0, 0.382, 0.450, "Qwen3.5-9B's shapes on one H200", delta_rule=_QLA
    ),
    Measured(
        _H200, "qwen3_5", 9.0e9, 4096, 0.0, 0.0, 0.538, 0.551, "Qwen3.5-9B's shapes on one H200", delta_rule=_QLA
    ),
    Measured(
        _H200, "qwen3_5", 9.0e9, 16384, 0.0, 0.0, 0.610, 0.621, "Qwen3.5-9B's shapes on one H200", delta_rule=_QLA
    ),
    Measured(
        _H200, "qwen3_5", 9.0e9, 32768, 0.13, 0.87, 0.592, 0.601, "Qwen3.5-9B's shapes on one H200", delta_rule=_QLA
    ),
    Measured(
        _H200, "qwen3_5", 26.9e9, 8192, 1.0, 0.0, 0.338, 0.416,
        "Qwen3.8-27B's shapes on one H200 by a script before sftune, the slower and the faster kernels",
    ),
    Measured(
        _H200, "qwen3_5", 9.0e9, 8192, 1.0, 0.0, 0.403, 0.431,
        "Qwen3.5-9B's shapes on two H200", ranks=2, delta_rule=_QLA,
    ),
    *(
        Measured(
            _H200, "qwen3_5", 4.2e9, tokens, 0.0, selective, slowest, fastest,
            "Qwen3.5-4B's shapes on one H200", delta_rule=_QLA,
        )
        for tokens, selective, slowest, fastest in (
            (2048, 0.0, 0.211, 0.260), (4096, 0.0, 0.405, 0.461), (8192, 0.0, 0.515, 0.562),
            (16384, 0.0, 0.565, 0.572), (32768, 0.44, 0.559, 0.574),
        )
    ),
    *(
        Measured(
            _H200, "qwen3_5", 0.75e9, tokens, 0.0, 0.0, slowest, fastest,
            "Qwen3.5-0.8B's shapes on one H200, in short packs bound by its host", delta_rule=_QLA,
        )
        for tokens, slowest, fastest in (
            (2048, 0.052, 0.073), (4096, 0.115, 0.135), (8192, 0.153, 0.279), (16384, 0.309, 0.361),
            (32768, 0.451, 0.468),
        )
    ),
    Measured(
        _H200, "qwen3_5", 0.75e9, 8192, 0.0, 0.0, 0.069, 0.119,
        "three steps of Qwen3.5-0.8B's shapes on two H200, bound by their host", ranks=2, delta_rule=_QLA,
    ),
    Measured(
        _H200, "qwen3_5", 0.75e9, 8192, 0.0, 0.0, 0.150, 0.161,
        "Qwen3.5-0.8B's shapes on one H200, the slower and the faster kernels",
    ),
    Measured(
        _H200, "qwen3_5", 0.75e9, 32768, 0.0, 0.0, 0.269, 0.269, "Qwen3.5-0.8B's shapes on one H200"
    ),
    Measured(
        _H200, "llama", 8.0e9, 8192, 0.0, 0.0, 0.558, 0.598, "three steps of Llama-3.1-8B's shapes on one H200"
    ),
)  # fmt: skip
"""Of one model and length those of a named backend before those of any, whatever the number of GPUs."""
_SHARE_APART = 0.1
"""That two recipes of one speed may differ by, of the layers."""


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

    Of more GPUs than were measured only the upper bound is known: not what they lose to communication.
    """
    world, found = plan.world, _measured(plan)
    peak = peak_bf16_tflops(world.gpu_name) if world.gpu_name is not None else None
    if found is None or peak is None:
        where = world.gpu_name or "a CPU"
        return Speed(_UNKNOWN, _UNKNOWN, f"no speed was measured for this model and these settings on {where}")
    per_mfu = peak * 1e12 * world.ranks / plan.flops_per_token
    at_most = per_mfu * found.fastest
    at_least = per_mfu * found.slowest if world.ranks == found.ranks else None
    because = f"measured: {found.source}"
    if world.ranks > found.ranks:
        because += f"; times {world.ranks / found.ranks:g}, and what communication costs is not known"
    if plan.steps is None:
        return Speed((at_least, at_most), _UNKNOWN, because)
    tokens = plan.steps * plan.tokens_per_step
    slowest = None if at_least is None else tokens / at_least / 3600
    return Speed((at_least, at_most), (tokens / at_most / 3600, slowest), because)


def _measured(plan: Plan) -> Measured | None:
    """Of as many GPUs, or else of the most below that."""
    recipe = plan.recipe
    is_hybrid = any(plan.model.architecture().linear_attention)
    mixer = recipe.kernels.linear_attention if is_hybrid else recipe.kernels.attention
    is_usual = (
        recipe.model.dtype == "bfloat16"
        and recipe.batching.mode == "packing"
        and mixer not in ("torch", "sdpa")
        and recipe.kernels.float8 == "none"
        and not recipe.kernels.compile
        and not recipe.sharding.cpu_offload
        and not recipe.sharding.activation_checkpointing.offload
    )
    if not is_usual:
        return None
    known = [one for one in MEASURED if one.ranks <= plan.world.ranks and _is_of(one, plan)]
    return max(known, key=lambda one: (one.delta_rule is not None, one.ranks), default=None)


def _is_of(known: Measured, plan: Plan) -> bool:
    recipe = plan.recipe
    is_same = (known.gpu, known.family, known.tokens) == (
        plan.world.gpu_name, plan.model.family, recipe.batching.tokens,
    )  # fmt: skip
    shares = zip((known.full, known.selective), _recomputed(plan), strict=True)
    return (
        is_same
        and known.delta_rule in (None, recipe.kernels.linear_attention)
        and abs(plan.model.parameters / known.parameters - 1) < 0.1
        and all(abs(one - other) < _SHARE_APART for one, other in shares)
    )


def _recomputed(plan: Plan) -> tuple[float, float]:
    """Shares of the layers that backward computes again in full, and selectively."""
    section = plan.recipe.sharding.activation_checkpointing
    layers = plan.model.architecture().layers
    first = 1.0 if section.layers == "all" else min(1.0, int(section.layers) / layers)
    if section.mode == "selective":
        return 0.0, first
    if section.mode != "full":
        return 0.0, 0.0
    return first, 1.0 - first if section.others == "selective" else 0.0
