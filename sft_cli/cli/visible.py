"""Texts of data made safe to print: what would move a cursor, colour, hide or reorder text is written as an escape."""

from __future__ import annotations

import re

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline; carriage return overwrites its line
    "\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, or they change directions
    "\ud800-\udfff"  # halves of surrogate pairs, which no stream encodes
    "\U000e0000-\U000e007f]"  # tags: whole invisible sentences
)


def visible(text: str) -> str:
    """The text with such characters as `\\x1b`, `\\u202e`; joiners, which emoji and many scripts need, stay."""
    return _UNSEEN.sub(_escape, text)


def one_line(text: str) -> str:
    """As `visible`, newlines and tabs escaped too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
