"""Ends of turns, found in tokens: 9 is the terminator, 8 opens a turn, both are special."""

from __future__ import annotations

import numpy as np
import pytest

from sft_cli.data import turn_ends
from sft_cli.data.rows import rows_from_lists
from sft_cli.data.turn_ends import TurnEnds, find_turn_ends

SPECIAL = np.array([8, 9])
GOOD = ([8, 1, 9, 8, 2, 3, 9], [0, 0, 0, 0, 1, 1, 1])
TWO_TURNS = ([8, 1, 9, 8, 2, 9, 8, 1, 9, 8, 3, 9], [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1])
UNSUPERVISED = ([8, 1, 9, 8, 2, 3, 9], [0, 0, 0, 0, 1, 1, 0])
CUT = ([8, 1, 9, 8, 2, 3, 4, 5], [0, 0, 0, 0, 1, 1, 1, 1])
NO_TOKEN = ([1, 2, 3], [0, 1, 1])
PIECES = ([8, 2, 3, 4, 9], [0, 1, 0, 1, 1])
"""Two parts of one turn, as generation markers may enclose it."""
LINE_BREAK = ([8, 1, 9, 6, 8, 2, 9, 6, 8, 1, 9, 6, 8, 3, 9, 6], [0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1])
"""6 is a line break, which the markers enclose; the next turn is opened right behind it."""
OPENED = ([8, 1, 9, 8, 2, 9, 6], [0, 0, 0, 1, 1, 0, 0])
"""A special token, a word, and the end left out: what is special in the run is not its end."""


def is_line_break(token_id: int) -> bool:
    return token_id == 6


def ends(*rows: tuple[list[int], list[int]]) -> TurnEnds:
    (found,) = find_turn_ends(rows_from_lists(list(rows)), SPECIAL, 1, 8, is_line_break)
    return found


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([GOOD], TurnEnds(1, 1, 1, {9: 1}, {}, 0, 0)),
        ([TWO_TURNS, GOOD], TurnEnds(2, 2, 3, {9: 3}, {}, 0, 0)),
        ([UNSUPERVISED, GOOD], TurnEnds(2, 1, 2, {9: 1}, {9: 1}, 0, 0)),
        ([CUT], TurnEnds(1, 0, 1, {}, {}, 1, 0)),
        ([NO_TOKEN], TurnEnds(1, 0, 1, {}, {}, 0, 1)),
        ([LINE_BREAK], TurnEnds(1, 1, 2, {9: 2}, {}, 0, 0)),
        ([OPENED], TurnEnds(1, 0, 1, {}, {9: 1}, 0, 0)),
        ([([1, 6, 6], [0, 1, 1])], TurnEnds(1, 0, 1, {}, {}, 0, 1)),
        ([PIECES], TurnEnds(1, 1, 1, {9: 1}, {}, 0, 0)),
    ],
)
def test_kinds(rows: list[tuple[list[int], list[int]]], wanted: TurnEnds) -> None:
    assert ends(*rows) == wanted


def test_a_row_does_not_reach_into_the_next() -> None:
    """The run at the end of one row and that at the beginning of the next are two; a terminator there is not its."""
    assert ends(NO_TOKEN, ([3, 9, 2], [1, 1, 0])) == TurnEnds(2, 1, 2, {9: 1}, {}, 0, 1)
    assert ends(NO_TOKEN, ([9, 9], [0, 1])) == TurnEnds(2, 1, 2, {9: 1}, {}, 0, 1)


def test_sources_are_counted_apart() -> None:
    rows = rows_from_lists([GOOD, UNSUPERVISED, TWO_TURNS], [0, 2, 2])
    first, second, third = find_turn_ends(rows, SPECIAL, 3, 100, is_line_break)
    assert (first.rows, first.rows_supervised, first.turns) == (1, 1, 1)
    assert second == TurnEnds(0, 0, 0, {}, {}, 0, 0)
    assert (third.rows, third.rows_supervised, third.supervised, third.unsupervised) == (2, 1, {9: 2}, {9: 1})


@pytest.mark.parametrize("tokens", [1, 8, 20])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    rows = [GOOD, CUT, UNSUPERVISED, NO_TOKEN, TWO_TURNS, PIECES] * 3
    whole = ends(*rows)
    monkeypatch.setattr(turn_ends, "CHUNK_TOKENS", tokens)
    assert ends(*rows) == whole
