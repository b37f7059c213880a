"""What `sftune plan --json` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sft_cli.plan.fit import Fit, Saving
from sft_cli.plan.plan import Choice, Plan
from sft_cli.plan.speed import Speed

_OF_THE_PLAN = {
    "choices",
    "memory_gib",
    "memory_moment",
    "host_memory_gib",
    "gpu_memory_gib",
    "fits",
    "steps",
    "tokens_per_step",
    "micro_batches_per_step",
    "flops_per_token",
}


def plan_json(plan: Plan, fit: Fit, speed: Speed) -> dict[str, Any]:
    """A plan as a document: memory in GiB a GPU, the rest as in `Plan`, `Fit` and `Speed`.

    Where the number of steps isn't known, the reason is the last of the choices. `changes` are those that would save
    memory, each alone; `changes_that_fit` together make the recipe fit, each with what it saves after those before
    it: [] where it fits as it is, null where they are not enough or no GPU is known.
    """
    if plan.steps is None:
        unknown = Choice(key="steps", value=None, because=plan.steps_because or "unknown")
        plan = plan.model_copy(update={"choices": (*plan.choices, unknown)})
    return {
        **plan.model_dump(mode="json", include=_OF_THE_PLAN),
        "gpus_needed": fit.gpus_needed,
        "changes": _savings(fit.changes),
        "changes_that_fit": None if fit.changes_that_fit is None else _savings(fit.changes_that_fit),
        "tokens_per_second": _bounds(speed.tokens_per_second),
        "hours": _bounds(speed.hours),
        "hours_because": speed.because,
    }


def _savings(savings: Iterable[Saving]) -> list[dict[str, Any]]:
    return [{"set": dict(saving.keys), "saves_gib": saving.saves_gib, "costs": saving.costs} for saving in savings]


def _bounds(bounds: tuple[float | None, float | None]) -> dict[str, float | None] | None:
    return None if bounds == (None, None) else {"at_least": bounds[0], "at_most": bounds[1]}
