"""A launcher's temporary folder, which goes with it; what a killed launcher left goes with the next start."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sft_cli.errors import UsageError
from sft_cli.launch.folder_lock import LOCK, FolderLock

_PREFIX = "sftune-launch-"
_SURELY_LOCKED_SECONDS = 60.0
"""A start has locked its folder long before that."""


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """In TMPDIR, with a lock that shows others that its process lives."""
    sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        lock = _lock(Path(name))
        try:
            yield Path(name)
        finally:
            if lock is not None:
                lock.release()


def _lock(folder: Path) -> FolderLock | None:
    """None on a file system without locks: what a kill leaves there stays."""
    try:
        return FolderLock.take(folder)
    except OSError:
        return None


def sweep(parent: Path) -> None:
    """Removes the folders whose launcher is gone; leaves those of other users, who may not be asked."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            if time.time() - (folder / LOCK).stat().st_mtime < _SURELY_LOCKED_SECONDS:
                continue
            lock = FolderLock.take(folder)
        except (OSError, UsageError):  # never locked, another user's, or its launcher lives
            continue
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()
