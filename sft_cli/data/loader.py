"""Steps of micro-batches for one rank: the same number for every rank, in an order that follows from the recipe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from sft_cli.data.batch import Batch, pack_rows, pad_rows
from sft_cli.data.order import (
    BEGINNING,
    DataPosition,
    MicroBatches,
    StepRounds,
    count_steps,
    epoch_steps,
    evaluation_micro_batches,
)
from sft_cli.data.rows import TokenizedRows
from sft_cli.plan.plan import Plan


@dataclass(frozen=True, eq=False)
class StepBatches:
    """What one rank computes in one optimizer step."""

    step: int
    """From 1."""
    epoch: float
    """Passes over the data at the end of this step."""
    micro_batches: tuple[Batch, ...]
    """As many as on every other rank; fillers included."""
    is_last: bool = False
    """Whether the run ends with this step."""
    position: DataPosition | None = None
    """What has been taken at the end of this step; None where the step's number alone says it."""
    digest: int = 0
    """24 bits that are the same on every rank, where each has read the rows for itself."""


class Steps(Protocol):
    """What a run takes its steps from: `Loader`, or of a stream `StreamLoader`."""

    total_steps: int

    def steps(self, start_step: int = 0) -> Iterator[StepBatches]: ...
    def heaviest_micro_batch(self) -> Batch: ...
    def heaviest_step(self) -> StepBatches: ...
    def remarks(self, *, is_over: bool) -> Iterable[str]: ...


class Loader:
    """The training steps of one rank.

    Args:
        rows: all training rows; each rank reads its own share of them.
        plan: batching, epochs, seed, number of ranks.
        rank: of this process, over all nodes.
        start: what a resumed run has taken, on whatever number of ranks.

    Raises:
        DataError: there are fewer packs (micro-batches) than ranks.
    """

    def __init__(self, rows: TokenizedRows, plan: Plan, rank: int, start: DataPosition = BEGINNING) -> None:
        self._rows = rows
        self._plan = plan
        self._rank = rank
        self._start = start
        self.total_steps = count_steps(rows, plan, start)

    def beginning_at(self, start: DataPosition) -> Loader:
        """The same run's steps after another place in the data."""
        return Loader(self._rows, self._plan, self._rank, start)

    def steps(self, start_step: int = 0) -> Iterator[StepBatches]:
        """Yield the steps after `start_step` (0: from the beginning), exactly those an unbroken run would take."""
        step, ranks = self._start.step, self._plan.world.ranks
        for epoch in range(self._start.epoch, self._plan.recipe.train.epochs):
            if step >= self.total_steps:
                return
            taken = self._start.micro_batches if epoch == self._start.epoch else 0
            batches, steps = epoch_steps(self._rows, self._plan, epoch, taken)
            for rounds in steps[: self.total_steps - step]:
                step += 1
                if step > start_step:
                    done, whole = taken + rounds.end * ranks, taken + steps[-1].end * ranks
                    position = DataPosition(step, epoch, min(done, taken + len(batches)))
                    micro_batches = self._share(batches, rounds)
                    yield StepBatches(step, epoch + done / whole, micro_batches, step == self.total_steps, position)

    def heaviest_micro_batch(self) -> Batch:
        """This rank's micro-batch of the round with the most slots: what a warm-up tries."""
        return max(self.heaviest_step().micro_batches, key=lambda batch: batch.slots)

    def heaviest_step(self) -> StepBatches:
        """The step of the first epoch with the largest micro-batch: what a dry run tries. As `steps`, but step 1."""
        batches, steps = epoch_steps(self._rows, self._plan, 0)
        ranks = self._plan.world.ranks
        heaviest = max(steps, key=lambda rounds: int(batches.slots[rounds.first * ranks : rounds.end * ranks].max()))
        return StepBatches(1, 0.0, self._share(batches, heaviest))

    def remarks(self, *, is_over: bool) -> Iterable[str]:
        """What is to be said at the end of a run: nothing that the launcher has not said."""
        return ()

    def _share(self, batches: MicroBatches, rounds: StepRounds) -> tuple[Batch, ...]:
        return tuple(
            _rank_batch(self._rows, batches, index, self._plan, self._rank) for index in range(rounds.first, rounds.end)
        )


def evaluation_batches(rows: TokenizedRows, plan: Plan, rank: int) -> Iterator[Batch]:
    """One rank's share of the evaluation rows, each row once over all ranks; every rank gets the same number."""
    batches = evaluation_micro_batches(rows, plan)
    rounds = -(-len(batches) // plan.world.ranks)
    for index in range(rounds):
        yield _rank_batch(rows, batches, index, plan, rank)


def _rank_batch(rows: TokenizedRows, batches: MicroBatches, round_index: int, plan: Plan, rank: int) -> Batch:
    """The micro-batch of one rank in one round; a filler where the round is short."""
    first = round_index * plan.world.ranks
    index = first + rank
    is_filler = index >= len(batches)
    source = first if is_filler else index
    batch = collate(rows, batches.groups[source], int(batches.slots[source]), plan)
    return batch.emptied() if is_filler else batch


def collate(rows: TokenizedRows, row_ids: list[int], slots: int, plan: Plan) -> Batch:
    """Rows as the plan's mode has them, in so many slots; where a GPU fetches them, in memory it reads directly."""
    is_packing = plan.recipe.batching.mode == "packing"
    batch = pack_rows(rows, row_ids, slots) if is_packing else pad_rows(rows, row_ids, slots // len(row_ids))
    return batch.pinned() if plan.world.device == "cuda" else batch
