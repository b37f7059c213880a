"""The table of `sftune check-kernels`: drawn on a terminal, aligned lines elsewhere."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sft_cli.kernels.check.request import Report, Row

HEADINGS = (
    "slot", "backend", "status", "selected", "version", "error fwd", "error bwd", "ms fwd", "ms bwd", "speed-up",
)  # fmt: skip
_COLOURS = {"ok": "green", "missing": "dim", "unsupported": "yellow"}


def print_report(report: Report, what: str) -> None:
    """Prints the table.

    Args:
        what: which recipe and model were checked.
    """
    triton = f", Triton {report.triton}" if report.triton else ""
    head = f"{what}, on {report.device}; torch {report.torch}{triton}"
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        # A terminal has lost nothing by a late import, a pipe would.
        _print_table(report, head)
    else:
        print(plain(report, head))


def plain(report: Report, head: str) -> str:
    """Aligned lines, one a backend; what there is to say about one stands at its line's end."""
    lines = [[*HEADINGS, ""], *([*_cells(row), _remark(row)] for row in report.slots)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(HEADINGS))]
    rows = ("  ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[-1]]).rstrip() for line in lines)
    return "\n".join([head, *rows])


def _print_table(report: Report, head: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(title=head, title_justify="left")
    for at, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if at > 4 else "left", no_wrap=at < 3)
    previous = None
    for row in report.slots:
        if previous not in (None, row.slot):
            table.add_section()
        cells = _cells(row)
        cells[0] = "" if row.slot == previous else row.slot
        status = Text(cells[2], style=_COLOURS.get(row.status, "bold red"))
        table.add_row(*cells[:2], status, *cells[3:])
        previous = row.slot
    console.print(table)
    for row in report.slots:
        if remark := _remark(row):
            console.print(Text(f"{row.slot} {row.backend}: {remark}"), soft_wrap=True)


def _cells(row: Row) -> list[str]:
    return [
        row.slot,
        row.backend,
        row.status,
        "selected" if row.selected else "",
        row.version or "",
        *(f"{error:.1e}" if error is not None else "" for error in (row.forward_error, row.backward_error)),
        *(f"{ms:.3f}" if ms is not None else "" for ms in (row.forward_ms, row.backward_ms)),
        f"{row.speedup:.2f}" if row.speedup is not None else "",
    ]


def _remark(row: Row) -> str:
    if row.status == "missing":
        return row.install or ""
    return row.detail or ""
