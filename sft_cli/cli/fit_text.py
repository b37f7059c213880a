"""Whether a plan fits its GPU, and what to change where it does not, in lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sft_cli.plan.fit import Fit, Saving
    from sft_cli.plan.plan import Plan


def fit_text(plan: Plan, fit: Fit) -> str | None:
    """What to change so that it fits, or that nothing helps; None where it fits, or no GPU is known."""
    if plan.fits is not False:
        return None
    if fit.changes_that_fit is None:
        lines = ["no change of the recipe makes it fit; those that save most, each alone"]
        lines += _saving_lines(fit.changes)
    else:
        lines = [f"these together make it fit, with {fit.total_gib:.1f} GiB; each saves, after those above it"]
        lines += _saving_lines(fit.changes_that_fit)
        others = [saving for saving in fit.changes if saving.keys not in [one.keys for one in fit.changes_that_fit]]
        if others:
            lines += ["what else would save memory, each alone", *_saving_lines(others)]
    if fit.gpus_needed is not None and fit.gpus_needed != plan.world.ranks:
        lines.append(f"as it is, it fits {gpus_text(plan, fit)}")
    return "\n".join(lines)


def gpus_text(plan: Plan, fit: Fit) -> str:
    """How many of its GPU a plan needs."""
    if fit.gpus_needed is None:
        return "no number of them is enough"
    spread = plan.recipe.sharding.backend == "none" and fit.gpus_needed > 1
    return f"{fit.gpus_needed:,} x {plan.world.gpu_name}" + (", with `sharding.backend: fsdp2`" if spread else "")


def misfit_warning(plan: Plan) -> str | None:
    """What `sftune train` says before it starts a plan that may run out of memory; None where it fits.

    A warning and no refusal: it is an estimate, and only a run can prove it.
    """
    if plan.fits is not False:
        return None
    from sft_cli.plan.fit import find_fit

    fit = find_fit(plan)
    known = f"{plan.memory_gib.total:.1f} GiB are estimated, and the GPU has {plan.gpu_memory_gib:.1f}"
    if fit.changes_that_fit is not None:
        changes = "; ".join(saving.text() for saving in fit.changes_that_fit)
        advice = f"it would fit with {changes} ({fit.total_gib:.1f} GiB)"
    elif fit.gpus_needed is not None:
        advice = f"it would fit {gpus_text(plan, fit)}"
    else:
        advice = "no change that is known makes it fit"
    return f"WARNING: this may run out of memory: {known}; {advice}. `sftune plan` says more."


def _saving_lines(savings: Sequence[Saving]) -> list[str]:
    width = max((len(saving.text()) for saving in savings), default=0)
    return [f"  {saving.text():{width}}  {saving.saves_gib:8.1f} GiB  {saving.costs}" for saving in savings]
