"""How much disk the checkpoints of a run take, by formula."""

from __future__ import annotations

from sft_cli.plan.plan import Plan
from sft_cli.plan.sharded_bytes import BYTES

_MOMENT_BYTES = {"adamw": 4.0, "adamw_8bit": 1 + 4 / 64}
"""Of a number of one of Adam's two moments; in 8 bits with a scale for 64 numbers at least."""


def checkpoint_bytes(plan: Plan) -> int:
    """One checkpoint: masters and two moments of every parameter."""
    master = BYTES[plan.recipe.model.master_dtype]
    return int(plan.model.parameters * (master + 2 * _MOMENT_BYTES[plan.recipe.optimizer.name]))


def checkpoints_at_once(plan: Plan, saved_steps: int = 0) -> int:
    """The most that lie on the disk at a time: those that are kept, and the one that is being written.

    Args:
        saved_steps: step that a resumed run goes on from.
    """
    recipe = plan.recipe.checkpoint
    if plan.steps is None:
        return recipe.keep + 1
    saves = plan.steps // recipe.every_steps - saved_steps // recipe.every_steps
    saves += plan.steps % recipe.every_steps != 0
    return min(saves, recipe.keep + 1)
