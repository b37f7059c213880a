"""A folder that is written beside the one it replaces, and takes its name when all of it is on the disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sft_cli.errors import CheckpointError
from sft_cli.plan.synced import sync_files, sync_folder


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yields an empty folder to fill, which then becomes `target`; what an interrupted one left is removed first.

    At every moment an earlier `target` is whole, as `target` or, for the time between two renames, as `.target.old`,
    from which the next call takes it back. What can't be finished is removed, so as not to fill the disk.

    Raises:
        CheckpointError: `target` is a file, or the disk would not take it.
    """
    unfinished, old = _beside(target, "unfinished"), _beside(target, "old")
    with _disk_errors(target):
        if target.exists() and not target.is_dir():
            raise CheckpointError(
                "an export can't be written: a file has its name", where=str(target), fix="Move the file away."
            )
        if old.exists() and not target.exists():
            old.rename(target)
        for left in (old, unfinished):
            _remove(left)
        unfinished.mkdir(parents=True)
        try:
            yield unfinished
            sync_files(unfinished)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        if target.exists():
            target.rename(old)
        unfinished.rename(target)
        sync_folder(target.parent)
        _remove(old)


def _beside(target: Path, state: str) -> Path:
    return target.with_name(f".{target.name}.{state}")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        free_gib = shutil.disk_usage(target.parent).free / 2**30 if target.parent.is_dir() else 0
        raise CheckpointError(
            f"the export could not be written, with {free_gib:,.1f} GiB free: {error.strerror or error}",
            where=str(error.filename or target),
            fix="Make room or permission there. Checkpoints and an earlier export are whole: "
            "`sftune export CHECKPOINT DIR` writes the model from a checkpoint.",
        ) from error
