"""The profile on the command's stdout: rich tables on a terminal, aligned lines anywhere else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from sft_cli.telemetry.detachable_stream import detachable
from sft_cli.telemetry.profile.text import Grid, finding_lines, headline, overview, plain, tables

if TYPE_CHECKING:
    from rich.table import Table

Document = dict[str, Any]


def show(stream: TextIO, content: Document, compared: Sequence[Grid], paths: Sequence[str]) -> None:
    """Writes all that a reader needs without opening a file; the verdict and findings last, where the eye is.

    Args:
        compared: tables beside another profile.
        paths: of the files written.
    """
    stream = detachable(stream)
    grids = [*tables(content), overview(content), *compared]
    words, found = content["verdict"], finding_lines(content)
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        _show_rich(stream, content, grids)
    else:
        stream.write(f"{headline(content)}\n\n{plain(grids)}\n")
    stream.write("\n" + "\n".join(["verdict", *(f"  {line}" for line in words)]) + "\n")
    stream.write("\n" + "\n".join(["findings, the dearest first", *(f"  {line}" for line in found)]) + "\n")
    stream.write("\n" + "\n".join(paths) + "\n")
    stream.flush()


def _show_rich(stream: TextIO, content: Document, grids: Sequence[Grid]) -> None:
    from rich.console import Console
    from rich.text import Text

    # rich asks descriptors 0 to 2 for the size, and a worker's are files by now.
    width = os.get_terminal_size(stream.fileno()).columns or 80
    console = Console(file=stream, force_terminal=True, highlight=False, width=width)
    console.print(Text(headline(content), style="bold"), soft_wrap=True)
    for grid in grids:
        console.print()
        console.print(_rich(grid))


def _rich(grid: Grid) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(grid.title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD)
    table.show_header = any(grid.headings)
    is_table = len(grid.headings) > 2
    for at, heading in enumerate(grid.headings):
        table.add_column(heading, justify="right" if is_table and at else "left", no_wrap=True, overflow="ellipsis")
    for row in grid.rows:
        table.add_row(*map(Text, row), style="bold" if row[0] == "total" else "")
    return table
