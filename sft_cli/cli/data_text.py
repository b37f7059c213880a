"""`sftune data` as text: drawn and coloured on a terminal, plain aligned lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence

from sft_cli.cli.data_view import DataView, Sample
from sft_cli.cli.data_words import (
    BATCHING_HEADINGS,
    LEGEND,
    SOURCE_HEADINGS,
    THIS,
    Stretch,
    batching_cells,
    batching_title,
    in_one_line,
    length_words,
    overview,
    sample_words,
    shortened,
    source_cells,
    source_remarks,
    stretches,
)
from sft_cli.cli.visible import one_line, visible
from sft_cli.data.summary import Bin

BAR_CELLS = 40
_MARKS = {"good": "ok", "note": "note", "bad": "LOOK"}


def print_view(view: DataView) -> None:
    """Prints all of it."""
    if _is_terminal():
        # A terminal has lost nothing by a late import, a pipe would.
        from sft_cli.cli.data_terminal import open_console, print_view_on

        print_view_on(open_console(), view)
    else:
        _print_plain(plain_view(view))


def print_sample(sample: Sample) -> None:
    """Prints one row, whole."""
    if _is_terminal():
        from sft_cli.cli.data_terminal import open_console, print_sample_on

        print_sample_on(open_console(), sample, stretches(sample))
    else:
        _print_plain(plain_sample(sample, stretches(sample)))


def plain_view(view: DataView) -> Iterator[str]:
    """The lines for a file or a pipe: no colour, no wrapping, ASCII but for the data's own text."""
    yield one_line(overview(view))
    yield ""
    yield from _table(in_one_line(SOURCE_HEADINGS), source_cells(view), numbers_from=3)
    for name, remark in source_remarks(view):
        yield one_line(f"{_MARKS[remark.kind]:4}  {name}: {remark.text}")
    yield from ("", f"tokens a row: {length_words(view)}")
    yield from plain_histogram(view.bins)
    yield from ("", f"batching: {batching_title(view)}")
    ways = [(*batching_cells(way), f"< {THIS}" if way.is_recipes else "") for way in view.batching]
    yield from _table((*in_one_line(BATCHING_HEADINGS), ""), ways, numbers_from=2)
    if view.samples:
        yield from ("", f"first rows; supervised tokens stand between [[ and ]]: {LEGEND}")
    for sample in view.samples:
        yield from plain_sample(sample, shortened(stretches(sample)))


def plain_histogram(bins: Sequence[Bin]) -> Iterator[str]:
    """A line a bin, its bar of #."""
    widths = [max(len(f"{number:,}") for number in numbers) for numbers in _columns(bins)]
    most = max(bin_.rows for bin_ in bins)
    for bin_ in bins:
        cells = -(-bin_.rows * BAR_CELLS // most)
        low, high, rows = (f"{n:>{w},}" for n, w in zip((bin_.low, bin_.high, bin_.rows), widths, strict=True))
        yield f"  {low} - {high}  {rows}  {'#' * cells}".rstrip()


def plain_sample(sample: Sample, parts: Iterable[Stretch]) -> Iterator[str]:
    """A row's text behind a rule on the left, so that nothing in it reads as a line of sftune's."""
    yield one_line(sample_words(sample))
    text, inside = "", False
    for part in parts:
        if part.supervised != inside:
            text += "[[" if part.supervised else "]]"
            inside = part.supervised
        text += visible(part.text)
    for line in (text + ("]]" if inside else "")).split("\n"):
        yield f"  | {line}".rstrip()


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, numbers_from: int) -> Iterator[str]:
    lines = [headings, *(tuple(one_line(cell) for cell in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            cell.rjust(width) if at >= numbers_from and headings[at] else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def _columns(bins: Sequence[Bin]) -> Iterator[list[int]]:
    yield [bin_.low for bin_ in bins]
    yield [bin_.high for bin_ in bins]
    yield [bin_.rows for bin_ in bins]


def _is_terminal() -> bool:
    """Whether stdout is one that can draw: bars and frames are Unicode."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and sys.stdout.encoding.startswith("utf")


def _print_plain(lines: Iterable[str]) -> None:
    """What the stream's encoding lacks becomes an escape: ASCII where there is no Unicode."""
    encoding = sys.stdout.encoding or "utf-8"  # a StringIO says None
    for line in lines:
        print(line.encode(encoding, "backslashreplace").decode(encoding))
