"""How much disk the checkpoints of a run take, by formula."""

from __future__ import annotations

from sft_cli.plan.plan import Plan
from sft_cli.plan.sharded_bytes import BYTES, MOMENT_BYTES


def checkpoint_bytes(plan: Plan) -> int:
    """One checkpoint: masters and two moments of every parameter; those in 8 bits with as few scales as can be."""
    master = BYTES[plan.recipe.model.master_dtype]
    return int(plan.model.parameters * (master + 2 * MOMENT_BYTES[plan.recipe.optimizer.name]))


def more_checkpoints(plan: Plan, saved_steps: int = 0, there: int = 0) -> int:
    """How many more than now lie on the disk at the worst time: when those that are kept, the best one too, and the one
    that is being written do.

    Args:
        saved_steps: step that a resumed run goes on from.
        there: complete ones that are on the disk now.
    """
    recipe = plan.recipe.checkpoint
    room = max(0, recipe.keep + 1 + plan.recipe.evaluate.keep_best - there)
    if plan.steps is None:
        return room
    saves = plan.steps // recipe.every_steps - saved_steps // recipe.every_steps
    saves += plan.steps % recipe.every_steps != 0
    return min(saves, room)
