"""What `sftune bench --json` prints and `--save` keeps: an entry a rung, all its numbers from the timed steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from sft_cli.cli.bench_ladder import STOCK
from sft_cli.errors import SftError
from sft_cli.telemetry.start_up import KERNELS, REGIONS, WARM_UP

if TYPE_CHECKING:
    from sft_cli.cli.bench_rung import Order
    from sft_cli.plan.plan import Plan
    from sft_cli.recipe.schema import Recipe

Document = dict[str, Any]
Entry = dict[str, Any]

_SECONDS_PER_HOUR = 3600
_NUMBERS = (
    "tokens_per_second", "ratio", "mfu", "peak_memory_gib", "launches", "real_share", "step_seconds",
    "hours_for_dataset",
)  # fmt: skip
IDLE = "idle"
"""What of a step the GPU did nothing in, beside the kinds of work."""


def setting(plan: Plan, layers: int | None) -> Document:
    """What has to be the same wherever two rungs are compared."""
    ranks, rows_hash = plan.world.ranks, plan.rows_hash
    return _setting(plan.recipe, layers, device=plan.world.gpu_name, ranks=ranks, rows_hash=rows_hash)


def known_setting(recipe: Recipe, layers: int | None) -> Document:
    """The same before there is a plan."""
    from sft_cli.plan.hardware import find_hardware

    hardware = find_hardware()
    device = hardware.gpu_name if hardware.gpus else None
    return _setting(recipe, layers, device=device, ranks=None, rows_hash=None)


def _setting(
    recipe: Recipe, layers: int | None, *, device: str | None, ranks: int | None, rows_hash: str | None
) -> Document:
    sources = [" ".join(filter(None, (source.path, source.subset, source.split))) for source in recipe.data.train]
    return {
        "device": device or "cpu",
        "ranks": ranks,
        "model": recipe.model.path,
        "layers": layers,
        "data": sources,
        "rows_hash": rows_hash,
    }


def measured(order: Order, plan: Plan, data_tokens: int | None, result: Mapping[str, Any]) -> Entry:
    """A rung that ran.

    Args:
        data_tokens: real ones of one pass over the data; None for a stream.
        result: as the first rank wrote it.
    """
    timed = result["timed"]
    rates = [step["tokens_per_second"] for step in timed]
    rate, step_seconds = median(rates), median(step["step_seconds"] for step in timed)
    slots, tokens = (sum(step[what] for step in timed) for what in ("slots", "tokens"))
    return {
        "name": order.name,
        "tokens_per_second": rate,
        "ratio": None,
        "mfu": None if timed[0]["mfu"] is None else median(step["mfu"] for step in timed),
        "peak_memory_gib": result["peak_memory_gib"],
        "peak_reserved_gib": result["peak_reserved_gib"],
        "allocator_retries": result["allocator_retries"],
        "launches": result["launches"],
        "real_share": tokens / slots,
        "step_seconds": step_seconds,
        "hours_for_dataset": None if data_tokens is None else data_tokens / rate / _SECONDS_PER_HOUR,
        "timed_steps": len(timed),
        "timed_step_seconds": [step["step_seconds"] for step in timed],
        "timed_phase_seconds": result["phases"],
        "late_kernels": result["late_kernels"],
        "tokens_per_second_min": min(rates),
        "tokens_per_second_max": max(rates),
        "tokens_per_second_mean": tokens / sum(step["step_seconds"] for step in timed),
        "tokens_per_step": tokens / len(timed),
        "data_wait_seconds": fmean(step["data_wait_seconds"] for step in timed),
        "seconds_to_first_step": result["seconds_to_first_step"],
        "start_up_seconds": result["start_up_seconds"],
        "warm_up_seconds": sum(result["start_up_seconds"][part] for part in (KERNELS, REGIONS, WARM_UP)),
        "warm_up_step_seconds": result["warm_up_step_seconds"],
        "kinds": _kinds(result, step_seconds),
        "kernels": _kernels(plan),
        "was_finite": result["was_finite"],
        "sets": list(order.sets),
        "error": None,
        "exit_code": 0,
    }


def failed(order: Order, error: SftError) -> Entry:
    """A rung that did not run."""
    place = f"{error.where}: " if error.where else ""
    return {
        "name": order.name,
        **dict.fromkeys(_NUMBERS),
        "sets": list(order.sets),
        "error": f"{place}{error.what}",
        "exit_code": error.exit_code,
    }


def with_ratios(entries: Sequence[Entry]) -> list[Entry]:
    """Each with its tokens a second over stock's, where that ran in the same call."""
    stock = rate_of(entries, STOCK)
    return [{**entry, "ratio": _ratio(entry["tokens_per_second"], stock)} for entry in entries]


def rate_of(entries: Sequence[Entry], name: str) -> float | None:
    """Tokens a second of the first rung of this name that ran."""
    rates = (entry["tokens_per_second"] for entry in entries if entry["name"] == name)
    return next((rate for rate in rates if rate is not None), None)


def _ratio(rate: float | None, base: float | None) -> float | None:
    return None if rate is None or base is None else rate / base


def _kinds(result: Mapping[str, Any], step_seconds: float) -> dict[str, float]:
    """Seconds of a step by kind of work; on a GPU also what the timed steps took beyond the GPU's work."""
    busy = result["gpu_busy_seconds"]
    idle = {} if busy is None else {IDLE: max(0.0, step_seconds - busy)}
    return {**result["kinds"], **idle}


def _kernels(plan: Plan) -> dict[str, str]:
    from sft_cli.plan.backends import BACKENDS

    return {slot: getattr(plan.recipe.kernels, slot) for slot in BACKENDS}
