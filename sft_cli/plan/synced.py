"""What is on the disk, and not only on its way there. Here, because every room may import it."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path


def sync_files(folder: Path, but: Collection[str] = ()) -> None:
    """The files of a folder, and their names, are on the disk when this returns.

    Args:
        but: names of files that are on the disk already.
    """
    for path in folder.iterdir():
        if path.name not in but:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """The names in a folder are on the disk when this returns."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
