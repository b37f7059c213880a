"""Files that are whole, and on the disk and not only on their way there. Here, because every room may import it."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path


def replace_text(path: Path, text: str, *, errors: str = "strict", synced: bool = False) -> None:
    """Writes a file in one piece: a reader, or a kill, never meets half of it.

    Args:
        errors: of the encoding, as `open` has it.
        synced: it is on the disk before it takes the place of the one before.

    Raises:
        OSError: the disk would not take it; the file before is whole.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("w", encoding="utf-8", errors=errors) as file:
        file.write(text)
        if synced:
            file.flush()
            os.fsync(file.fileno())
    unfinished.replace(path)


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
