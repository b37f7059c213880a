"""Whether what ends an assistant's turn is supervised: read off the tokens and flags of the rows, not the template.

A model that never sees the end of its turn as a target never learns to stop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sft_cli.data.rows import TokenizedRows

CHUNK_TOKENS = 2**24
"""Looked at in one go, so that memory does not grow with the data."""

_SUPERVISED, _UNSUPERVISED, _CUT, _NO_TOKEN = range(4)
_BLANKS = 2
"""Tokens of white space that a supervised run may have behind the token that ends its turn."""
_PIECE = -1
"""A stretch of a turn that goes on after it: not an end."""


@dataclass(frozen=True)
class TurnEnds:
    """The ends of the supervised turns of one source."""

    rows: int
    rows_supervised: int
    """Rows in which every turn's end is supervised."""
    turns: int
    """Supervised turns; turns that nothing is learned from are not looked at."""
    supervised: Mapping[int, int]
    """By token id: turns that end with this token, supervised."""
    unsupervised: Mapping[int, int]
    """By token id: turns after whose supervised part this token comes, unsupervised."""
    cut: int
    """Turns that the end of a row of `max_length` cuts off."""
    no_token: int
    """Turns after which no special token comes."""


def find_turn_ends(
    rows: TokenizedRows,
    special_ids: NDArray[np.int64],
    sources: int,
    max_length: int,
    is_blank: Callable[[int], bool],
) -> tuple[TurnEnds, ...]:
    """The ends of turns, for each source.

    A turn is a run of supervised tokens. Its end is its last token where that is special, a line break behind it left
    aside; else the first special token after it. Where the next supervised run comes before any special token, both
    are parts of one turn.

    Args:
        rows: tokenised rows.
        special_ids: ids of the tokens that may end a turn.
        sources: how many the recipe has.
        max_length: `data.max_length`, in tokens.
        is_blank: whether a token is white space alone.
    """
    found = [Counter[tuple[int, int]]() for _ in range(sources)]
    rows_in_order = np.zeros(sources, dtype=np.int64)
    for first, end in _chunks(rows.offsets):
        row, kind, token = _ends(rows, first, end, special_ids, max_length, is_blank)
        source = rows.source_of_row[first + row]
        for index in np.unique(source).tolist():
            of_source = source == index
            pairs, counts = np.unique(np.stack([kind[of_source], token[of_source]]), axis=1, return_counts=True)
            found[index].update(dict(zip(map(tuple, pairs.T.tolist()), counts.tolist(), strict=True)))
        faultless = np.ones(end - first, dtype=bool)
        faultless[row[kind != _SUPERVISED]] = False
        rows_in_order += np.bincount(rows.source_of_row[first:end][faultless], minlength=sources)
    rows_of_source = np.bincount(rows.source_of_row, minlength=sources)
    return tuple(
        TurnEnds(
            rows=int(rows_of_source[index]),
            rows_supervised=int(rows_in_order[index]),
            turns=counts.total(),
            supervised=_of_kind(counts, _SUPERVISED),
            unsupervised=_of_kind(counts, _UNSUPERVISED),
            cut=sum(_of_kind(counts, _CUT).values()),
            no_token=sum(_of_kind(counts, _NO_TOKEN).values()),
        )
        for index, counts in enumerate(found)
    )


def _of_kind(counts: Counter[tuple[int, int]], kind: int) -> dict[int, int]:
    return {token: turns for (of, token), turns in counts.most_common() if of == kind}


def _chunks(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of whole rows, each of about `CHUNK_TOKENS` or one row."""
    rows = len(offsets) - 1
    first = 0
    while first < rows:
        end = int(np.searchsorted(offsets, offsets[first] + CHUNK_TOKENS, side="right")) - 1
        end = min(max(end, first + 1), rows)
        yield first, end
        first = end


def _ends(
    rows: TokenizedRows,
    first: int,
    end: int,
    special_ids: NDArray[np.int64],
    max_length: int,
    is_blank: Callable[[int], bool],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Row (from `first`), kind, and token id (or 0) of each end of a turn in rows [first, end)."""
    bounds = rows.offsets[first : end + 1] - rows.offsets[first]
    tokens = rows.token_ids[rows.offsets[first] : rows.offsets[end]]
    flags = np.asarray(rows.supervised[rows.offsets[first] : rows.offsets[end]]) != 0
    # A run starts (ends) where its neighbour is unsupervised or in another row.
    starts, ends = flags.copy(), flags.copy()
    starts[1:] &= ~flags[:-1]
    ends[:-1] &= ~flags[1:]
    starts[bounds[:-1]] = flags[bounds[:-1]]
    ends[bounds[1:] - 1] = flags[bounds[1:] - 1]
    first_of, last_of = np.flatnonzero(starts), np.flatnonzero(ends)
    row = np.searchsorted(bounds, last_of, side="right") - 1
    # Markers may enclose the line break that templates write behind the token.
    token = tokens[_before_blanks(tokens, first_of, last_of, is_blank)].astype(np.int64)
    kind = np.where(np.isin(token, special_ids), _SUPERVISED, _PIECE)
    open_ends = np.flatnonzero(kind == _PIECE)
    if len(open_ends):
        special = np.flatnonzero(np.isin(tokens, special_ids))
        row_end = bounds[row[open_ends] + 1]
        next_run = np.append(first_of, len(tokens))[open_ends + 1]
        after = np.append(special, len(tokens))[np.searchsorted(special, last_of[open_ends], side="right")]
        found = after < np.minimum(next_run, row_end)
        is_last = next_run >= row_end
        reaches_end = last_of[open_ends] == row_end - 1
        is_cut = reaches_end & (np.diff(bounds)[row[open_ends]] >= max_length)
        kind[open_ends] = np.select(
            [found, is_last & is_cut, is_last], [_UNSUPERVISED, _CUT, _NO_TOKEN], default=_PIECE
        )
        token[open_ends] = np.where(found, tokens[np.minimum(after, len(tokens) - 1)], 0)
    is_end = kind != _PIECE
    return row[is_end], kind[is_end], token[is_end]


def _before_blanks(
    tokens: NDArray[np.uint32], first_of: NDArray[np.int64], last_of: NDArray[np.int64], is_blank: Callable[[int], bool]
) -> NDArray[np.int64]:
    """The last token of each run that is no white space, `_BLANKS` before its end at most."""
    found = last_of.copy()
    for _ in range(_BLANKS):
        blank_ids = [token_id for token_id in np.unique(tokens[found]).tolist() if is_blank(token_id)]
        found -= np.isin(tokens[found], blank_ids) & (found > first_of)
    return found
