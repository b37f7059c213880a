"""What several pages are made of. Text is escaped here; what is said to be HTML has been by the caller."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def card(title: str, content: Iterable[str]) -> str:
    """A section with a title; its content is HTML."""
    return f'<section class="card"><h2>{escape(title)}</h2>{"".join(content)}</section>'


def figures(told: Iterable[tuple[str, str]]) -> str:
    """Large numbers beside each other: (what it is, the number)."""
    return (
        '<div class="figures">' + "".join(f"<div><b>{escape(n)}</b>{escape(name)}</div>" for name, n in told) + "</div>"
    )


def table(
    headings: Sequence[str], rows: Iterable[Iterable[str]], *, numbers_from: int | None = None, own: int | None = None
) -> str:
    """Headings and cells are HTML.

    Args:
        numbers_from: the first of the columns that are set to the right, as numbers are; one without heading is not.
        own: the row that is set off.
    """

    def line(tag: str, cells: Iterable[str], kind: str = "") -> str:
        marked = (
            f"<{tag}{' class=n' if numbers_from is not None and at >= numbers_from and headings[at] else ''}>"
            f"{cell}</{tag}>"
            for at, cell in enumerate(cells)
        )
        return f"<tr{kind}>{''.join(marked)}</tr>"

    body = (line("td", row, " class=own" if at == own else "") for at, row in enumerate(rows))
    head = line("th", headings) if any(headings) else ""
    return f"<table>{head}{''.join(body)}</table>"
