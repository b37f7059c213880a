"""How every page of sftune's begins and looks: it needs nothing else and no network."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from html import escape
from pathlib import Path

_COMMON = Path(__file__).with_suffix(".css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_page(title: str, style: Path, body: Iterable[str], *, mark: str = "", script: Path | None = None) -> str:
    """The whole page as text.

    Args:
        title: as it is; escaped here.
        style: CSS of this page alone, after what all have in common.
        body: HTML, in which everything that comes from outside is escaped.
        mark: a comment at the top.
        script: runs at the end; the page's policy lets no other run, whatever text came into the body.
    """
    code = None if script is None else script.read_text(encoding="utf-8")
    allowed = "" if code is None else f"; script-src 'sha256-{b64encode(sha256(code.encode()).digest()).decode()}'"
    return "\n".join(
        [
            f"<!doctype html>{mark}",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}{allowed}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>\n{_COMMON.read_text(encoding='utf-8')}{style.read_text(encoding='utf-8')}</style></head><body>",
            *body,
            *([] if code is None else [f"<script>{code}</script>"]),
            "</body></html>\n",
        ]
    )
