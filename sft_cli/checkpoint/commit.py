"""Writing one checkpoint: every rank its shards, then one atomic rename."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from sft_cli.checkpoint.hashing_writer import HashingWriter
from sft_cli.checkpoint.layout import (
    checkpoint_path,
    complete_checkpoints,
    link_best,
    remove,
    remove_set_aside,
    unfinished_path,
)
from sft_cli.checkpoint.manifest import FileFacts, file_facts, write_manifest
from sft_cli.checkpoint.progress import Progress
from sft_cli.checkpoint.refusals import first_line, reasons
from sft_cli.errors import CheckpointError
from sft_cli.plan.disk import free_bytes, require_room, size_text
from sft_cli.plan.synced import sync_files, sync_folder

_SPARE_SHARE, _SPARE_BYTES = 0.01, 2**20
"""What the small files of a checkpoint and of the run may take beside its tensors: a share of them, and some."""
_FIX = "Free disk space, or choose another output_dir. Older checkpoints are whole."


@dataclass(frozen=True)
class Target:
    """Where checkpoints go, and which stay."""

    folder: Path
    """`checkpoints` of the run folder; made with the first one."""
    keep: int
    """How many complete ones stay."""
    beside: Sequence[Path] = ()
    """Files of the run folder that are copied into each."""


def write_checkpoint(
    target: Target, state: dict[str, Any], size: int, progress: Progress, group: dist.ProcessGroup
) -> Path:
    """Writes `step-N`, then removes all but the newest and the best. Called on every rank of `group`, in any thread.

    The checkpoint takes its name only when every rank has written, all is on disk and its manifest names every file;
    until then, and after a crash, it is a folder with a leading dot that nobody takes for a checkpoint.

    Args:
        state: of tensors that nobody changes meanwhile.
        size: bytes of it, over all ranks.
        group: can send objects on the host; nobody else may use it at the same time.

    Raises:
        CheckpointError: the disk would not take it; on every rank.
    """
    unfinished = unfinished_path(target.folder, progress.step)
    with _disk_errors(target.folder):
        _first_rank(group, lambda: _prepare(target.folder, unfinished, size))
        try:
            writer = HashingWriter(unfinished)
            dcp.save(state, storage_writer=writer, process_group=group)
            written = _gathered(writer.written, group)
            _first_rank(group, lambda: _commit(target, unfinished, progress, written))
        except (Exception, CheckpointException):  # torch's is no Exception
            if dist.get_rank(group) == 0:
                shutil.rmtree(unfinished, ignore_errors=True)  # what can't be finished must not fill the disk
            raise
    return checkpoint_path(target.folder, progress.step)


def mark_best(folder: Path, step: int, group: dist.ProcessGroup) -> None:
    """Points `best` at a checkpoint that is complete. Called on every rank of `group`.

    Raises:
        CheckpointError: the disk would not take it; on every rank.
    """
    with _disk_errors(folder):
        _first_rank(group, lambda: link_best(folder, step))


def _prepare(folder: Path, unfinished: Path, size: int) -> None:
    folder.mkdir(exist_ok=True)  # not its parents: a run folder that somebody has deleted must not come back empty
    shutil.rmtree(unfinished, ignore_errors=True)
    require_room(folder, {"a checkpoint": int(size * (1 + _SPARE_SHARE)) + _SPARE_BYTES}, fix=_FIX)
    unfinished.mkdir()


def _commit(target: Target, unfinished: Path, progress: Progress, written: dict[str, FileFacts]) -> None:
    folder, complete = target.folder, checkpoint_path(target.folder, progress.step)
    progress.write(unfinished)
    for file in target.beside:
        shutil.copyfile(file, unfinished / file.name)
    small = {path.name: file_facts(path) for path in unfinished.iterdir() if path.name not in written}
    write_manifest(unfinished, {**written, **small})
    sync_files(unfinished, but=set(written))
    if complete.exists():
        remove(complete)
    unfinished.rename(complete)
    sync_folder(folder)
    remove_set_aside(folder)
    # Each time: a kill, or a run that went back to an earlier step, may have left it elsewhere.
    link_best(folder, progress.best_step)
    for step, old in complete_checkpoints(folder)[: -target.keep]:
        if step != progress.best_step:
            remove(old)


def _first_rank(group: dist.ProcessGroup, do: Callable[[], None]) -> None:
    """Does something on rank 0 while the others wait; what it raises there is raised on all of them."""
    outcome: list[Exception | None] = [None]
    if dist.get_rank(group) == 0:
        try:
            do()
        except Exception as error:  # raised below, on every rank
            outcome = [error]
    dist.broadcast_object_list(outcome, group=group, group_src=0)
    if outcome[0] is not None:
        raise outcome[0]


def _gathered(written: dict[str, FileFacts], group: dist.ProcessGroup) -> dict[str, FileFacts]:
    of_ranks: list[dict[str, FileFacts]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(of_ranks, written, group=group)
    return {name: facts for of_rank in of_ranks for name, facts in of_rank.items()}


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _refused(folder, str(error.strerror or error)) from error
    except CheckpointException as error:
        found = reasons(error)
        if not all(map(_is_of_the_disk, found)):
            raise
        raise _refused(folder, first_line(found[0])) from error


def _is_of_the_disk(reason: BaseException) -> bool:
    """torch's zip writer answers a short write with a RuntimeError about positions; the system's error is lost."""
    return isinstance(reason, OSError) or (isinstance(reason, RuntimeError) and "inline_container" in str(reason))


def _refused(folder: Path, why: str) -> CheckpointError:
    if not folder.parent.is_dir():
        return CheckpointError(
            "the run folder is gone: it was deleted or moved during the run",
            where=str(folder.parent),
            fix="Its checkpoints went with it; start anew, or bring it back and use --resume.",
        )
    return CheckpointError(
        f"the checkpoint could not be written, with {size_text(free_bytes(folder))} free: {why}",
        where=str(folder),
        fix=_FIX,
    )
