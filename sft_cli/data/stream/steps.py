"""A stream's micro-batches as optimizer steps, and each rank's share of them.

Every rank reads and tokenises all rows, because packs follow from the lengths of all of them: so ranks agree on every
step without a word, whatever happens, and none waits for another.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from sft_cli.data.balance import even_rounds
from sft_cli.data.chat import EncodedChat
from sft_cli.data.order import fewer_than_ranks
from sft_cli.data.report import SourceReport
from sft_cli.data.rows import TokenizedRows
from sft_cli.data.stream.rows import Stream
from sft_cli.data.stream.windows import StreamBatch, stream_batches
from sft_cli.plan.plan import Plan


@dataclass(frozen=True, eq=False)
class StreamStep:
    """One optimizer step over all ranks."""

    step: int
    """From 1."""
    epoch: float
    """Passes over the data at its end, as far as the sources tell how much of them has been read."""
    batches: list[StreamBatch]
    """In round `i` rank `r` takes `batches[i * ranks + r]`; in a short last round the rest take fillers."""


@dataclass(frozen=True, eq=False)
class RankRows:
    """One micro-batch of one rank."""

    rows: TokenizedRows
    slots: int
    is_filler: bool


@dataclass(frozen=True, eq=False)
class RankStep:
    """One rank's share of a step."""

    step: int
    epoch: float
    is_last: bool
    """Whether the run ends with it: at `train.max_steps`, or because the stream has ended `train.epochs` times."""
    micro_batches: tuple[RankRows, ...]
    digest: int
    """Of the whole step; the same on every rank, or they did not read the same rows."""
    reports: tuple[SourceReport, ...]
    """Of all that was read until it was made, which is ahead of it."""


def stream_steps(stream: Stream, plan: Plan) -> Iterator[StreamStep]:
    """The steps of a run, without an end at `train.max_steps`.

    Raises:
        DataError: a row or file that can't be used; an epoch with fewer micro-batches than ranks.
    """
    with closing(stream_batches(stream.epoch, plan.recipe)) as batches:
        for step, taken in enumerate(_taken_by_steps(batches, plan), start=1):
            yield StreamStep(step, taken[-1].epochs, _balanced(taken, plan))


def rank_steps(stream: Stream, plan: Plan, rank: int) -> Iterator[RankStep]:
    """One rank's share of the steps to the last; as many as on every other rank.

    Raises:
        DataError: as `stream_steps`.
    """
    steps, limit = stream_steps(stream, plan), plan.recipe.train.max_steps
    upcoming = next(steps, None)
    while upcoming is not None:
        this, upcoming = upcoming, None if upcoming.step == limit else next(steps, None)
        micro_batches = _share(this.batches, rank, plan.world.ranks)
        digest = _digest(this, is_last=upcoming is None)
        yield RankStep(this.step, this.epoch, upcoming is None, micro_batches, digest, stream.reports)


def join_rows(chats: list[EncodedChat], rows_of_sources: list[int] | None = None) -> TokenizedRows:
    """Rows one after another, at least one: so many of each source; None: all of source 0."""
    counts = [len(chats)] if rows_of_sources is None else rows_of_sources
    offsets = np.cumsum([0, *(len(chat.token_ids) for chat in chats)], dtype=np.int64)
    return TokenizedRows(
        token_ids=np.concatenate([chat.token_ids for chat in chats]),
        supervised=np.concatenate([chat.supervised for chat in chats]),
        offsets=offsets,
        source_of_row=np.repeat(np.arange(len(counts), dtype=np.int32), counts),
    )


def _taken_by_steps(batches: Iterator[StreamBatch], plan: Plan) -> Iterator[list[StreamBatch]]:
    """Whole rounds until their slots over all ranks reach `tokens_per_step`; what an epoch leaves is a step too."""
    ranks, wanted = plan.world.ranks, plan.recipe.train.tokens_per_step
    step: list[StreamBatch] = []
    count = rows = slots = 0
    for batch in batches:
        count, rows, slots = count + 1, rows + len(batch.rows), slots + batch.slots
        step.append(batch)
        if batch.ends_epoch and count < ranks:
            raise fewer_than_ranks(plan, rows, count)
        if batch.ends_epoch or (len(step) % ranks == 0 and slots >= wanted):
            yield step
            step, slots = [], 0
        if batch.ends_epoch:
            count = rows = 0


def _balanced(batches: list[StreamBatch], plan: Plan) -> list[StreamBatch]:
    """In rounds that cost attention about the same, where that is asked for."""
    if plan.recipe.batching.balance == "none":
        return batches
    costs = [sum(len(chat.token_ids) ** 2 for chat in batch.rows) for batch in batches]
    return [batches[index] for index in even_rounds(np.array(costs, dtype=np.int64), plan.world.ranks)]


def _digest(step: StreamStep, *, is_last: bool) -> int:
    """24 bits of all rows and where each is, and of whether the run ends here."""
    digest = zlib.crc32(bytes([is_last]))
    for batch in step.batches:
        digest = zlib.crc32(repr([batch.slots, *(len(chat.token_ids) for chat in batch.rows)]).encode(), digest)
        for chat in batch.rows:
            digest = zlib.crc32(chat.token_ids.tobytes() + chat.supervised.tobytes(), digest)
    return digest & 0xFFFFFF


def _share(batches: list[StreamBatch], rank: int, ranks: int) -> tuple[RankRows, ...]:
    """A rank without a micro-batch in the last round takes the round's first one, to be emptied."""
    share = []
    for first in range(0, len(batches), ranks):
        is_filler = first + rank >= len(batches)
        batch = batches[first if is_filler else first + rank]
        share.append(RankRows(join_rows(batch.rows), batch.slots, is_filler))
    return tuple(share)
