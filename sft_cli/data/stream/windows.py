"""A stream's rows in micro-batches, window by window: each is ordered as a small data set would be.

A window is read while the micro-batches of the one before it are taken, evenly, so that no step waits for thousands of
rows; not even the first of the next epoch. What makes a poor micro-batch at the end of a window waits for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
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
    epochs: float
    """Passes over the data that are over with it, as far as the sources tell how much of them has been read."""
    ends_epoch: bool


def stream_batches(read_epoch: Callable[[int], Generator[StreamRow]], recipe: Recipe) -> Generator[StreamBatch]:
    """The micro-batches of all epochs over all ranks, in order; each row of an epoch is in exactly one.

    Where an epoch is but one window, they are those of the same data without streaming. In order `sequential` they
    are that anyhow.

    Args:
        read_epoch: the rows of an epoch, from 0; at least one.
        recipe: its batching, seed and epochs count.
    """
    epoch = number = 0
    begin, carried = 0.0, list[StreamRow]()
    ahead = _Ahead(read_epoch(0))
    try:
        window = _Window(ahead, recipe.batching)
        window.fill(1.0)
        while window.rows:
            is_last = ahead.next is None
            end = 1.0 if is_last else window.rows[-1].position
            # Source after source, as rows stand without streaming.
            taken = sorted([*carried, *window.rows], key=lambda row: row.source)
            lengths = np.array([len(row.chat.token_ids) for row in taken], dtype=np.int64)
            batches = ordered(lengths, np.arange(len(taken)), recipe.batching, recipe.train.seed, epoch, number)
            waiting = set() if is_last else _waiting(batches, lengths, taken, carried, recipe.batching)
            if is_last and epoch + 1 < recipe.train.epochs:
                ahead = _Ahead(read_epoch(epoch + 1))
            window = _Window(ahead, recipe.batching)
            going = [index for index in range(len(batches)) if index not in waiting]
            for count, index in enumerate(going, start=1):
                window.fill(count / len(going))
                chats = [taken[row].chat for row in batches.groups[index]]
                position = begin + (end - begin) * count / len(going)
                yield StreamBatch(chats, int(batches.slots[index]), epoch + position, is_last and count == len(going))
            window.fill(1.0)
            carried = [taken[row] for row in sorted(row for index in waiting for row in batches.groups[index])]
            begin, number, epoch = (0.0, 0, epoch + 1) if is_last else (end, number + 1, epoch)
    finally:
        ahead.close()


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

    def __init__(self, rows: Generator[StreamRow]) -> None:
        self._rows = rows
        self.next = next(rows, None)

    def take(self) -> StreamRow | None:
        row, self.next = self.next, next(self._rows, None) if self.next else None
        return row

    def close(self) -> None:
        self._rows.close()


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
