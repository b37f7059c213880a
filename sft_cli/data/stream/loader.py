"""A stream's steps as batches of one rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sft_cli.data.batch import Batch
from sft_cli.data.loader import StepBatches, collate
from sft_cli.data.padding import padded_length
from sft_cli.data.rows import TokenizedRows, rows_from_lists
from sft_cli.data.stream.reader import Reader
from sft_cli.data.stream.steps import RankRows, RankStep
from sft_cli.data.tokenisation import longest_row
from sft_cli.plan.plan import Plan


class StreamLoader:
    """The training steps of one rank, as `Loader`, of rows that come while it trains.

    Args:
        reader: of this rank.
        plan: with `train.max_steps`.
    """

    def __init__(self, reader: Reader, plan: Plan) -> None:
        assert plan.recipe.train.max_steps is not None, "a rule of recipes with data.streaming"
        self.total_steps = plan.recipe.train.max_steps
        """How many there are if the stream is long enough."""
        self._reader = reader
        self._plan = plan
        self._latest: RankStep | None = None

    def steps(self, start_step: int = 0) -> Iterator[StepBatches]:
        """Yield the steps after `start_step`, once: exactly those an unbroken run would take.

        All that comes before them is read and tokenised anew: packs follow from the lengths of all rows.

        Raises:
            DataError: a row or file can't be used; the stream has fewer micro-batches than ranks.
        """
        for step in self._reader.steps(start_step):
            self._latest = step
            yield self._batches(step)

    def heaviest_micro_batch(self) -> Batch:
        """A micro-batch with as many slots as any can have: what a warm-up tries."""
        return self.heaviest_step().micro_batches[0]

    def heaviest_step(self) -> StepBatches:
        """A step of micro-batches with as many slots as any can have: what a dry run tries.

        With packing the first step is one. With padding its tokens are repeated until the slots are full, since which
        step of the stream has the most nobody knows.
        """
        first = self._batches(self._reader.first())
        if self._plan.recipe.batching.mode == "packing":
            return first
        capacity, ranks = self._plan.recipe.batching.tokens, self._plan.world.ranks
        rounds = -(-self._plan.recipe.train.tokens_per_step // (capacity * ranks))
        width = padded_length(longest_row(self._plan), capacity)
        full = _repeated(self._reader.first().micro_batches[0].rows, rows_wanted=capacity // width, length=width)
        batch = collate(full, list(range(len(full))), width * len(full), self._plan)
        return StepBatches(first.step, first.epoch, (batch,) * rounds)

    def remarks(self, *, is_over: bool) -> Iterator[str]:
        """What is to be said at the end of a run: rows that were left out, and a stream that was too short.

        Args:
            is_over: whether all steps have been taken.
        """
        if self._latest is None:
            return
        for source in self._latest.reports:
            left_out = source.rows_in - source.rows_out
            if left_out:
                reasons = ", ".join(f"{reason}: {count:,}" for reason, count in source.dropped.items())
                yield f"{source.path}: {left_out:,} of {source.rows_in:,} rows read were left out ({reasons})"
            yield from (f"{source.path}: {count:,} rows with {reason}" for reason, count in source.changed.items())
        if is_over and self._latest.step < self.total_steps:
            epochs = self._plan.recipe.train.epochs
            yield (
                f"the stream ended after {self._latest.step:,} of {self.total_steps:,} steps: it was read "
                f"{epochs} time{'s' if epochs > 1 else ''} (train.epochs), and the learning rate did not reach its end"
            )

    def _batches(self, step: RankStep) -> StepBatches:
        micro_batches = tuple(self._batch(part) for part in step.micro_batches)
        return StepBatches(step.step, step.epoch, micro_batches, step.is_last, digest=step.digest)

    def _batch(self, part: RankRows) -> Batch:
        batch = collate(part.rows, list(range(len(part.rows))), part.slots, self._plan)
        return batch.emptied() if part.is_filler else batch


def _repeated(rows: TokenizedRows, *, rows_wanted: int, length: int) -> TokenizedRows:
    token_ids, supervised = (np.resize(values, length) for values in (rows.token_ids, rows.supervised))
    return rows_from_lists([(token_ids.tolist(), supervised.tolist())] * rows_wanted)
