"""A stream's rows in micro-batches, window by window: each is ordered as a small data set would be.

A window is read while the micro-batches of the one before it are taken, evenly, so that no step waits for thousands of
rows. What makes a poor micro-batch at the end of a window waits for the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sft_cli.data.chat import EncodedChat
from sft_cli.data.order import MicroBatches, ordered
from sft_cli.data.stream.rows import StreamRow
from sft_cli.recipe.schema import BatchingSection, Recipe

WINDOW_ROWS = 4096
"""What is shuffled and packed together: packs of 8,192 slots are filled to more than 99% from 1,024 chats on."""
WINDOW_TOKENS = 2**24
"""Ends a window of long rows earlier: 80 MiB, of which two are in memory."""
_FEWEST_PACKS, _FEWEST_LARGE_PACKS = 32, 4
"""A window has tokens for at least so many micro-batches: of `WINDOW_ROWS` short rows, of `WINDOW_TOKENS`."""
_FULL = 0.995
"""Packs less full than this wait for the next window, once;"""
_WAITING = 8
"""but only the emptiest, one of so many: where all rows are long, all packs are poor."""


@dataclass(frozen=True, eq=False)
class StreamBatch:
    """A micro-batch of some rank."""

    rows: list[EncodedChat]
    slots: int
    position: float
    """How much of the epoch is over with it, 0 to 1."""


def stream_batches(rows: Iterator[StreamRow], recipe: Recipe, epoch: int) -> Iterator[StreamBatch]:
    """All micro-batches of an epoch over all ranks, in order; each row is in exactly one.

    Where the epoch is but one window, they are those of the same data without streaming. In order `sequential` they
    are that anyhow.

    Args:
        rows: of this epoch.
        recipe: its batching and seed count.
        epoch: from 0.
    """
    ahead, carried = _Ahead(rows), list[StreamRow]()
    begin, number = 0.0, 0
    window = _Window(ahead, recipe.batching)
    window.fill(1.0)
    while window.rows:
        end = window.rows[-1].position if ahead.next else 1.0
        # Source after source, as rows stand without streaming.
        taken = sorted([*carried, *window.rows], key=lambda row: row.source)
        lengths = np.array([len(row.chat.token_ids) for row in taken], dtype=np.int64)
        batches = ordered(lengths, np.arange(len(taken)), recipe.batching, recipe.train.seed, epoch, number)
        waiting = _waiting(batches, lengths, taken, carried, recipe.batching) if ahead.next else set()
        going = [index for index in range(len(batches)) if index not in waiting]
        window = _Window(ahead, recipe.batching)
        for count, index in enumerate(going, start=1):
            window.fill(count / len(going))
            chats = [taken[row].chat for row in batches.groups[index]]
            yield StreamBatch(chats, int(batches.slots[index]), begin + (end - begin) * count / len(going))
        window.fill(1.0)
        carried = [taken[row] for row in sorted(row for index in waiting for row in batches.groups[index])]
        begin, number = end, number + 1


def _waiting(
    batches: MicroBatches,
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]],
    taken: list[StreamRow],
    carried: list[StreamRow],
    batching: BatchingSection,
) -> set[int]:
    """The micro-batches whose rows go into the next window instead."""
    if batching.order == "length_grouped":
        return set()
    if batching.order == "sequential" or batching.mode == "padding":
        return {len(batches) - 1}  # the last one is not finished
    have_waited = {id(row) for row in carried}
    fills = [int(lengths[group].sum()) / batching.tokens for group in batches.groups]
    poor = [
        index
        for index, group in enumerate(batches.groups)
        if fills[index] < _FULL and not any(id(taken[row]) in have_waited for row in group)
    ]
    return set(sorted(poor, key=fills.__getitem__)[: len(batches) // _WAITING])


class _Ahead:
    """Rows, of which the next one is known."""

    def __init__(self, rows: Iterator[StreamRow]) -> None:
        self._rows = rows
        self.next = next(rows, None)

    def take(self) -> StreamRow | None:
        row, self.next = self.next, next(self._rows, None) if self.next else None
        return row


class _Window:
    """Rows that are read bit by bit."""

    def __init__(self, ahead: _Ahead, batching: BatchingSection) -> None:
        self._ahead = ahead
        self._slots = batching.tokens
        self._tokens = 0
        self.rows: list[StreamRow] = []

    def fill(self, share: float) -> None:
        """Read on until this share of the window is there, or the rows end."""
        while self._share() < share and (row := self._ahead.take()) is not None:
            self.rows.append(row)
            self._tokens += len(row.chat.token_ids)

    def _share(self) -> float:
        rows = min(len(self.rows) / WINDOW_ROWS, self._tokens / (_FEWEST_PACKS * self._slots))
        return max(rows, self._tokens / max(WINDOW_TOKENS, _FEWEST_LARGE_PACKS * self._slots))
