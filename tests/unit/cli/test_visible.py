"""Data can't reach the terminal as anything but text."""

from __future__ import annotations

import sys

import pytest

from sft_cli.cli.visible import one_line, visible

MAY_STAY = "\n\t"


def test_no_control_character_stays() -> None:
    """Unicode's own categories are the judge: Cc controls, Cs surrogates, Zl and Zp separators."""
    import unicodedata

    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") and character not in MAY_STAY:
            assert visible(character).isascii(), hex(code)
            assert visible(character).isprintable(), hex(code)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b]0;title\x07", r"\x1b[31mred\x1b]0;title\x07"),
        ("real\rfake", r"real\x0dfake"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("\U000e0041", r"\U000e0041"),
        ("👩‍👧 नमस्‍ते\tüber\n", "👩‍👧 नमस्‍ते\tüber\n"),
    ],
)
def test_text_stays_and_tricks_are_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_one_line() -> None:
    assert one_line("a\n\tb\x1b") == r"a\n\tb\x1b"
