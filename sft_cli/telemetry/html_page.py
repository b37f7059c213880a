"""How every page of sftune's begins and looks: it needs nothing else, no network, no script."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

_COMMON = Path(__file__).with_suffix(".css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_page(title: str, style: Path, body: Iterable[str], *, mark: str = "") -> str:
    """The whole page as text.

    Args:
        title: as it is; escaped here.
        style: CSS of this page alone, after what all have in common.
        body: HTML, in which everything that comes from outside is escaped.
        mark: a comment at the top.
    """
    return "\n".join(
        [
            f"<!doctype html>{mark}",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>\n{_COMMON.read_text(encoding='utf-8')}{style.read_text(encoding='utf-8')}</style></head><body>",
            *body,
            "</body></html>\n",
        ]
    )
