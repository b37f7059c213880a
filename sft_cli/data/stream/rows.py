"""The rows of a stream in the order in which they are read: each source as often as it weighs, mixed as sizes are.

A source's weight says how often each of its rows is seen in an epoch, as without streaming: 2.5 reads it twice, and
then once more with a seeded half of its rows. Sources advance side by side by the share of them that has been read, so
all end together, and each stretch of the stream holds them in the proportion of the whole.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from operator import attrgetter
from pathlib import Path

import numpy as np

from sft_cli.data.chat import EncodedChat
from sft_cli.data.order import weighs_nothing, weight_generator
from sft_cli.data.report import SourceReport
from sft_cli.data.sources import open_source
from sft_cli.data.tokenisation import Tokenisation, load_model_side, longest_row, no_row, refuse_empty
from sft_cli.plan.plan import Plan

BLOCK_ROWS = 32
"""Tokenised in one call, which uses all cores. More would make steps wait for each other's blocks."""


@dataclass(frozen=True, eq=False)
class StreamRow:
    """A row that is left, on its way into a window."""

    chat: EncodedChat
    source: int
    """Index into `data.train`."""
    position: float
    """How much of the epoch has been read with it, 0 to 1, as far as its source tells; it never falls."""


class Stream:
    """The training data of a plan, to be read any number of times.

    Args:
        plan: with pinned sources and a tokenizer folder.

    Raises:
        DataError: a source isn't there.
        ModelError: the tokenizer or the chat template can't be used.
    """

    def __init__(self, plan: Plan) -> None:
        self._recipe = plan.recipe
        self.sources = plan.recipe.data.train
        cache_dir = Path(plan.recipe.data.cache_dir).expanduser()
        self._opened = [open_source(source, cache_dir, streaming=True) for source in self.sources]
        self._max_length = longest_row(plan)
        self._model_side = load_model_side(plan)
        self._counted = [self._tokenisation(index) for index in range(len(self.sources))]

    @property
    def reports(self) -> tuple[SourceReport, ...]:
        """What became of the rows so far, each counted once: in the first pass of the first epoch."""
        return tuple(tokenisation.report() for tokenisation in self._counted)

    def epoch(self, number: int) -> Generator[StreamRow]:
        """The rows of one epoch; closing it closes the files.

        Args:
            number: from 0.

        Raises:
            DataError: a bad row, an empty source, a file that can't be read; no row that is left in all sources.
        """
        empty = True
        with ExitStack() as stack:
            parts = [stack.enter_context(closing(self._weighted(index, number))) for index in range(len(self.sources))]
            mixed = _after_another(parts) if self._recipe.batching.order == "sequential" else _side_by_side(parts)
            for row in mixed:
                empty = False
                yield row
        if empty:
            refuse_empty(self.reports)

    def blocks(self, source: int, *, counted: bool) -> Generator[tuple[list[EncodedChat], float]]:
        """A source from its first row to its last: blocks of rows that are left, and the share that was read with each.

        Args:
            counted: whether `reports` should have these rows.

        Raises:
            DataError: as `epoch`.
        """
        tokenisation = self._counted[source] if counted else self._tokenisation(source)
        empty = True
        with closing(self._opened[source]()) as rows:
            while block := list(islice(rows, BLOCK_ROWS)):
                empty = False
                yield tokenisation.chats(block), block[-1].share_read
        if empty:
            raise no_row(self.sources[source])

    def _tokenisation(self, source: int) -> Tokenisation:
        return Tokenisation(self.sources[source], self._recipe.data, self._max_length, *self._model_side)

    def _weighted(self, source: int, epoch: int) -> Generator[StreamRow]:
        """One source as often as its weight says; its positions run from 0 to 1."""
        weight = self.sources[source].weight
        for number in range(ceil(weight)):
            last, rows = number / weight, 0
            choice = _Choice(weight - number, weight_generator(self._recipe.train.seed, epoch, source))
            with closing(self.blocks(source, counted=epoch == number == 0)) as blocks:
                for chats, share_read in blocks:
                    rows += len(chats)
                    chosen = choice.of(chats)
                    position = max(last, (number + min(1.0, weight - number) * share_read) / weight)
                    for at, chat in enumerate(chosen, start=1):
                        # A block is read at once. Its rows are told apart, or a small source would come at once, too.
                        yield StreamRow(chat, source, last + (position - last) * at / len(chosen))
                    last = position
            if rows and not number and not choice.chosen:
                raise weighs_nothing(self.sources[source], rows)


class _Choice:
    """A seeded choice of rows, the same share of every stretch of them: all from a share of 1 on."""

    def __init__(self, share: float, generator: np.random.Generator) -> None:
        self._share = share
        self._generator = generator
        self._seen = 0
        self.chosen = 0

    def of(self, chats: list[EncodedChat]) -> list[EncodedChat]:
        """Those of the next rows that are chosen, in order."""
        self._seen += len(chats)
        if self._share >= 1.0:
            self.chosen = self._seen
            return chats
        missing = int(self._share * self._seen + 0.5) - self.chosen
        self.chosen += missing
        return [chats[at] for at in np.sort(self._generator.permutation(len(chats))[:missing]).tolist()]


def _side_by_side(parts: Sequence[Generator[StreamRow]]) -> Generator[StreamRow]:
    yield from heapq.merge(*parts, key=attrgetter("position"))


def _after_another(parts: Sequence[Generator[StreamRow]]) -> Generator[StreamRow]:
    for index, part in enumerate(parts):
        for row in part:
            yield replace(row, position=(index + row.position) / len(parts))
