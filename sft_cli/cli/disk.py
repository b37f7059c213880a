"""Whether the disk has room for the checkpoints of a run, asked before its first step."""

from __future__ import annotations

import shutil

from sft_cli.checkpoint.layout import complete_checkpoints
from sft_cli.errors import CheckpointError
from sft_cli.launch.run_folder import RunFolder
from sft_cli.plan.checkpoint_size import checkpoint_bytes, checkpoints_at_once
from sft_cli.plan.plan import Plan

_GIB = 2**30


def require_room(plan: Plan, folder: RunFolder, saved_steps: int) -> None:
    """Passes a run whose first checkpoint fits; warns where the disk will be full later, since it may be tidied.

    Args:
        saved_steps: step that a resumed run goes on from.

    Raises:
        CheckpointError: not even one fits.
    """
    if not plan.recipe.checkpoint.enabled:
        return
    one = checkpoint_bytes(plan)
    free = shutil.disk_usage(folder.path).free
    there = len(complete_checkpoints(folder.checkpoints))
    more = max(1, checkpoints_at_once(plan, saved_steps) - there)
    if free < one:
        raise CheckpointError(
            f"a checkpoint takes {one / _GIB:,.2f} GiB (masters and both moments), and {free / _GIB:,.2f} GiB are free",
            where=str(folder.path),
            fix="Free disk space, choose another output_dir, or write `checkpoint: {enabled: false}`.",
        )
    if free < more * one:
        print(
            f"WARNING: {free // one} more checkpoints of {one / _GIB:,.2f} GiB fit on this disk, and checkpoint.keep: "
            f"{plan.recipe.checkpoint.keep} needs room for {more}: the run would stop there with exit code 5",
            flush=True,
        )
