"""Writing a checkpoint: every rank its shards, then one atomic rename."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict

from sft_cli.checkpoint.layout import PROGRESS, checkpoint_path, complete_checkpoints, unfinished_path
from sft_cli.errors import CheckpointError


@dataclass(frozen=True)
class Progress:
    """How far a run has come at a checkpoint."""

    step: int
    epoch: float


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    *,
    keep: int,
    beside: Sequence[Path] = (),
) -> Path:
    """Writes `folder/step-N`, then removes all but the newest `keep`. Called on every rank.

    The checkpoint takes its name only when every rank has written and the data is on disk; until then, and after a
    crash, it is a folder with a leading dot that nobody takes for a checkpoint.

    Args:
        keep: how many complete checkpoints stay.
        beside: files of the run folder that are copied into the checkpoint.

    Raises:
        CheckpointError: the disk would not take it.
    """
    unfinished, complete = unfinished_path(folder, progress.step), checkpoint_path(folder, progress.step)
    is_first = dist.get_rank() == 0
    if is_first:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    dist.barrier()
    try:
        _write_tensors(unfinished, model, optimizer)
    except CheckpointError:
        if is_first:
            shutil.rmtree(unfinished, ignore_errors=True)  # what can't be finished must not fill the disk
        raise
    if is_first:
        (unfinished / PROGRESS).write_text(json.dumps(asdict(progress)) + "\n", encoding="utf-8")
        for file in beside:
            shutil.copyfile(file, unfinished / file.name)
        _sync(unfinished)
        shutil.rmtree(complete, ignore_errors=True)
        unfinished.rename(complete)
        _sync_folder(folder)
        for _, old in complete_checkpoints(folder)[:-keep]:
            shutil.rmtree(old)
    dist.barrier()
    return complete


def _write_tensors(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
    try:
        dcp.save(state, checkpoint_id=folder)
    except CheckpointException as error:
        reasons = [failure[0] for failure in error.failures.values()]
        if not all(map(_is_of_the_disk, reasons)):
            raise
        free_mib = shutil.disk_usage(folder).free / 2**20
        raise CheckpointError(
            f"the checkpoint could not be written, with {free_mib:,.1f} MiB free: {str(reasons[0]).splitlines()[0]}",
            where=str(folder),
            fix="Free disk space, or choose another output_dir. Older checkpoints are whole.",
        ) from error


def _is_of_the_disk(reason: BaseException) -> bool:
    """torch's zip writer answers a short write with a RuntimeError about positions; the system's error is lost."""
    return isinstance(reason, OSError) or (isinstance(reason, RuntimeError) and "inline_container" in str(reason))


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
