"""Whether the disk has room for what a run writes, asked before its first step."""

from __future__ import annotations

from pathlib import Path

from sft_cli.checkpoint.layout import complete_checkpoints
from sft_cli.launch.run_folder import RunFolder
from sft_cli.plan import disk
from sft_cli.plan.checkpoint_size import checkpoint_bytes, more_checkpoints
from sft_cli.plan.plan import Plan

_GIB = 2**30


def require_room(output: Path, plan: Plan, overwrite: bool, saved_steps: int) -> None:
    """Passes a run whose first checkpoint and export fit; warns where the disk will be full later: it may be tidied.

    Args:
        overwrite: what `output` holds now will be gone.
        saved_steps: step that a resumed run goes on from.

    Raises:
        CheckpointError: they don't fit.
    """
    folder = RunFolder(output)
    freed = sum(map(disk.folder_bytes, folder.contents)) if overwrite else 0
    export = disk.run_bytes(plan)
    one = checkpoint_bytes(plan) if plan.recipe.checkpoint.enabled else 0
    fix = "Free disk space, choose another output_dir, or set checkpoint.export: false."
    disk.require_room(output, {**export, **({"a checkpoint": one} if one else {})}, freed=freed, fix=fix)
    free = disk.free_bytes(output) + freed - sum(export.values())
    there = 0 if overwrite else len(complete_checkpoints(folder.checkpoints))
    more = more_checkpoints(plan, saved_steps, there)
    if one and free < more * one:
        print(
            f"WARNING: {free // one} more checkpoints of {one / _GIB:,.2f} GiB fit on this disk, and checkpoint.keep: "
            f"{plan.recipe.checkpoint.keep} needs room for {more}: the run would stop there with exit code 5",
            flush=True,
        )
