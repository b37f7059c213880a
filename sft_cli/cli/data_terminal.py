"""`sftune data` on a terminal. Imports rich, so only where there is one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Literal

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sft_cli.cli.data_view import DataView, Sample
from sft_cli.cli.data_words import (
    BATCHING_HEADINGS,
    LEGEND,
    SOURCE_HEADINGS,
    THIS,
    Stretch,
    batching_cells,
    batching_title,
    length_words,
    overview,
    sample_words,
    shortened,
    source_cells,
    source_remarks,
    stretches,
)
from sft_cli.cli.visible import one_line, visible
from sft_cli.data.summary import Batching, Bin

_BAR_CELLS = 44
_TABLE_CELLS = 76
"""What the table of ways to batch takes without its bars."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SUPERVISED, _CONTEXT = "bold green", "dim"
_KINDS = {"good": ("✓", "green"), "note": ("•", "yellow"), "bad": ("✗", "bold red")}
_HERE = "◀"


def open_console() -> Console:
    """stdout; nothing in a text is taken for markup, a number or a path."""
    return Console(highlight=False, markup=False, emoji=False)


def print_view_on(console: Console, view: DataView) -> None:
    """Prints all of it."""
    _say(console, Text(one_line(overview(view)), style="bold"))
    _say(
        console,
        _table(SOURCE_HEADINGS, source_cells(view), numbers_from=3, folded=1),
    )
    for name, remark in source_remarks(view):
        mark, style = _KINDS[remark.kind]
        text = one_line(f"{name}: {remark.text}")
        _say(console, Text.assemble((f"{mark} ", style), text))
    _say(console, Text.assemble("\n", ("tokens a row ", "bold"), length_words(view), "\n"))
    for line in _histogram(view.bins):
        _say(console, line)
    _say(console, Text.assemble("\n", ("batching ", "bold"), batching_title(view), f"; {_HERE} {THIS}"))
    _say(console, _batching(console, view.batching))
    if view.samples:
        _say(
            console,
            Text.assemble(("first rows ", "bold"), "supervised tokens are ", ("green", _SUPERVISED), f": {LEGEND}"),
        )
    for sample in view.samples:
        print_sample_on(console, sample, shortened(stretches(sample)))


def print_sample_on(console: Console, sample: Sample, parts: Iterable[Stretch]) -> None:
    """Prints one row in a frame."""
    text = Text()
    for part in parts:
        style = _SUPERVISED if part.supervised else _CONTEXT
        if part.left_out:
            style = "italic yellow"
        elif part.special:
            style += " reverse" if part.supervised else " cyan"
        text.append(visible(part.text), style=style)
    text.rstrip()
    title = Text(one_line(sample_words(sample)))
    _say(console, Panel(text, title=title, title_align="left", box=ROUNDED, border_style="cyan"))


def _say(console: Console, what: Text | Table | Panel) -> None:
    if isinstance(what, Text):
        console.print(what, soft_wrap=True)
    else:
        console.print(what)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int, folded: int) -> Table:
    """Only the column `folded` gives way where the terminal is narrow."""
    table = Table(box=SIMPLE_HEAD, header_style="bold cyan", pad_edge=False, collapse_padding=True)
    for at, heading in enumerate(headings):
        justify: Literal["left", "right"] = "right" if at >= numbers_from and heading else "left"
        table.add_column(Text(heading), justify=justify, no_wrap=at != folded, overflow="fold", vertical="bottom")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    return table


def _batching(console: Console, ways: Sequence[Batching]) -> Table:
    room = console.width - _TABLE_CELLS
    bar_cells = min(16, room) if room >= 8 else 0
    table = _table((*BATCHING_HEADINGS, "", ""), (), numbers_from=2, folded=-1)
    for way in ways:
        style = "green" if way.real_share >= 0.95 else "yellow" if way.real_share >= 0.8 else "red"
        bar = _bar(way.real_share, bar_cells).ljust(bar_cells, "░")
        mark = _HERE if way.is_recipes else ""
        table.add_row(
            *map(Text, batching_cells(way)), Text(bar, style=style), mark, style="bold" if way.is_recipes else ""
        )
    return table


def _histogram(bins: Sequence[Bin]) -> Iterable[Text]:
    most = max(bin_.rows for bin_ in bins)
    width = max(len(f"{bin_.high:,}") for bin_ in bins)
    digits = max(len(f"{bin_.rows:,}") for bin_ in bins)
    for bin_ in bins:
        bounds = f"{bin_.low:>{width},} – {bin_.high:>{width},}"
        bar = _bar(bin_.rows / most, _BAR_CELLS)
        yield Text.assemble((f"  {bounds}  ", "dim"), f"{bin_.rows:>{digits},}  ", (bar, "cyan"))


def _bar(share: float, cells: int) -> str:
    """A bar of up to `cells`, never empty for what is not nothing."""
    whole, rest = divmod(ceil(share * cells * 8), 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")
