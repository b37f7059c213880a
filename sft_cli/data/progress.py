"""How far tokenisation is: a bar on a terminal, one plain line a source elsewhere. Always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


class Advance(Protocol):
    def __call__(self, rows: int, share: float) -> None:
        """Say how many rows of the source are read, and what share of it, 0 to 1."""


@contextmanager
def show_progress(name: str, *, shown: bool) -> Iterator[Advance]:
    """Show the progress of one source.

    Args:
        name: the source, as the user wrote it.
        shown: False shows nothing at all.
    """
    # A file may have any name, and no name moves the cursor.
    name = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in name)
    if shown and sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
            task = bar.add_task(f"tokenising {name}", total=1.0)

            def advance(rows: int, share: float) -> None:
                bar.update(task, completed=share, description=f"tokenising {name} {rows:,} rows")

            yield advance
        return

    total = 0

    def count(rows: int, share: float) -> None:
        nonlocal total
        total = rows

    yield count
    if shown:
        print(f"tokenising {name} {total:,} rows", file=sys.stderr, flush=True)


def short_name(path: str) -> str:
    """A local path without its folders, so that a bar has room on the line."""
    return Path(path).name if Path(path).is_absolute() else path
