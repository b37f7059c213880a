"""Which rows make which micro-batch, in which order, and which micro-batches make a step. Pure numpy.

Everything here follows from the lengths, the recipe and the epoch's number alone. Which micro-batches an epoch has, and
in which order, does not depend on the number of ranks; rank `r` takes every `ranks`-th of them. `balance: attention`
changes their order, inside a step only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sft_cli.data.balance import attention_costs, even_rounds
from sft_cli.data.packing import best_fit, next_fit
from sft_cli.data.padding import pad_greedily
from sft_cli.data.rows import TokenizedRows
from sft_cli.errors import DataError
from sft_cli.plan.plan import Plan
from sft_cli.recipe.schema import BatchingSection, SourceSection

# Streams of random numbers that must not be correlated with each other.
_ROWS, _BATCHES, _WEIGHTS = 0, 1, 2


@dataclass(frozen=True, eq=False)
class MicroBatches:
    """The micro-batches of one epoch over all ranks, in order."""

    groups: list[list[int]]
    """For each micro-batch the indices of its rows."""
    slots: NDArray[np.int64]
    """(micro-batches,) int64: token slots of each, padding included."""

    def __len__(self) -> int:
        return len(self.groups)


@dataclass(frozen=True)
class StepRounds:
    """The rounds of one optimizer step; in round `i` rank `r` takes micro-batch `i * ranks + r`."""

    first: int
    end: int


@dataclass(frozen=True)
class DataPosition:
    """How much of the data has been taken: what a resumed run goes on from, on whatever number of ranks."""

    step: int = 0
    """Optimizer steps so far."""
    epoch: int = 0
    """The pass (from 0) that the last of them belongs to."""
    micro_batches: int = 0
    """Of that pass, over all ranks."""


BEGINNING = DataPosition()


def train_micro_batches(rows: TokenizedRows, plan: Plan, epoch: int) -> MicroBatches:
    """The micro-batches of one training epoch.

    - `shuffled` packing: best fit over all rows (ties in random order), then the packs are shuffled.
    - `shuffled` padding: rows in random order, grouped while rows * `padded_length` fits `batching.tokens`.
    - `length_grouped` padding: rows of similar length together, ties in random order, then the batches are shuffled.
    - `sequential`: rows in file order, source after source, each source as often as its weight says; a row that does
      not fit opens the next micro-batch, so the order is exactly that of the files, in packs less full than best fit.

    Args:
        rows: the training rows.
        plan: its batching, seed and weights count.
        epoch: from 0.
    """
    recipe = plan.recipe
    row_ids = _weighted_rows(rows.source_of_row, recipe.data.train, recipe.train.seed, epoch)
    return ordered(rows.lengths, row_ids, recipe.batching, recipe.train.seed, epoch)


def ordered(
    lengths: NDArray[np.int64],
    row_ids: NDArray[np.int64],
    batching: BatchingSection,
    seed: int,
    epoch: int,
    window: int = 0,
) -> MicroBatches:
    """Rows in micro-batches, in the order of training.

    Args:
        lengths: (rows,) int64 tokens.
        row_ids: those to take, source after source.
        window: of the epoch, where it comes in windows; the first is ordered as if it were all of it.
    """
    part = (window,) if window else ()
    if batching.order != "sequential":
        row_ids = row_ids[_generator(seed, epoch, _ROWS, *part).permutation(len(row_ids))]
    batches = _group(lengths, row_ids, batching)
    if batching.order == "sequential" or (batching.order == "shuffled" and batching.mode == "padding"):
        return batches
    shuffled = _generator(seed, epoch, _BATCHES, *part).permutation(len(batches))
    return MicroBatches([batches.groups[index] for index in shuffled.tolist()], batches.slots[shuffled])


def evaluation_micro_batches(rows: TokenizedRows, plan: Plan) -> MicroBatches:
    """The micro-batches of an evaluation: each row once whatever the weights, the same every time."""
    batching = plan.recipe.batching
    order = "shuffled" if batching.mode == "packing" else "length_grouped"
    return _group(rows.lengths, np.arange(len(rows)), batching.model_copy(update={"order": order}))


def steps_of_epoch(batches: MicroBatches, ranks: int, tokens_per_step: int) -> list[StepRounds]:
    """Cut an epoch into optimizer steps: whole rounds until their slots over all ranks reach `tokens_per_step`.

    What is left at the end is a smaller step of its own. A rank without a micro-batch in the last round takes a
    filler with the shape of the round's first one, which counts in the slots.
    """
    rounds = -(-len(batches) // ranks)
    missing = rounds * ranks - len(batches)
    filled = np.concatenate([batches.slots, np.repeat(batches.slots[(rounds - 1) * ranks :][:1], missing)])
    slots_of_round = filled.reshape(rounds, ranks).sum(axis=1)
    steps: list[StepRounds] = []
    first, slots = 0, 0
    for index, round_slots in enumerate(slots_of_round.tolist()):
        slots += round_slots
        if slots >= tokens_per_step or index == rounds - 1:
            steps.append(StepRounds(first, index + 1))
            first, slots = index + 1, 0
    return steps


def epoch_steps(rows: TokenizedRows, plan: Plan, epoch: int, taken: int = 0) -> tuple[MicroBatches, list[StepRounds]]:
    """The micro-batches of an epoch and the steps they make.

    Args:
        taken: micro-batches of the epoch that the steps before have had; those returned begin after them. Where they
            end at a step, the steps are the rest of an unbroken epoch's.

    Raises:
        DataError: there are fewer micro-batches than ranks.
    """
    batches = train_micro_batches(rows, plan, epoch)
    ranks, batching = plan.world.ranks, plan.recipe.batching
    if len(batches) < ranks:
        raise fewer_than_ranks(plan, len(rows), len(batches))
    batches = MicroBatches(batches.groups[taken:], batches.slots[taken:])
    steps = steps_of_epoch(batches, ranks, plan.recipe.train.tokens_per_step) if len(batches) else []
    if batching.balance == "attention":
        batches = _balanced(batches, steps, ranks, rows.lengths)
    return batches, steps


def fewer_than_ranks(plan: Plan, rows: int, batches: int) -> DataError:
    """Of an epoch in which some rank would have nothing to do."""
    batching, ranks = plan.recipe.batching, plan.world.ranks
    unit = "packs" if batching.mode == "packing" else "micro-batches"
    return DataError(
        f"fewer {unit} than ranks: {rows:,} rows make {batches} {unit} of {batching.tokens:,} token slots, "
        f"for {ranks} ranks",
        where=", ".join(source.path for source in plan.recipe.data.train),
        fix="Lower batching.tokens, use more data, or fewer processes (launch.gpus).",
    )


def _balanced(batches: MicroBatches, steps: list[StepRounds], ranks: int, lengths: NDArray[np.int64]) -> MicroBatches:
    """The packs of each step, which stay its own, in rounds of packs that cost about the same. All have equal slots."""
    costs = attention_costs(batches.groups, lengths)
    order: list[int] = []
    for step in steps:
        first, end = step.first * ranks, min(step.end * ranks, len(batches))
        order += [first + index for index in even_rounds(costs[first:end], ranks)]
    return MicroBatches([batches.groups[index] for index in order], batches.slots)


def count_steps(rows: TokenizedRows, plan: Plan, start: DataPosition = BEGINNING) -> int:
    """Optimizer steps of the whole run: all epochs, cut at `train.max_steps`.

    Args:
        start: where a resumed run goes on; steps before it count as they were taken, on whatever number of ranks.

    Raises:
        DataError: there are fewer micro-batches than ranks.
    """
    limit = plan.recipe.train.max_steps
    steps = start.step
    for epoch in range(start.epoch, plan.recipe.train.epochs):
        taken = start.micro_batches if epoch == start.epoch else 0
        steps += len(epoch_steps(rows, plan, epoch, taken)[1])
        if limit is not None and steps >= limit:
            return max(limit, start.step)
    return steps


def weight_generator(seed: int, epoch: int, source: int) -> np.random.Generator:
    """What chooses an epoch's rows of a source whose weight has a fraction."""
    return _generator(seed, epoch, _WEIGHTS, source)


def weighs_nothing(source: SourceSection, rows: int) -> DataError:
    """Of a source with so small a weight that none of its rows would be seen."""
    return DataError(
        f"weight {source.weight:g} of {rows:,} rows is not one row an epoch",
        where=source.path,
        fix=f"Give it a weight from {1 / rows:.2g} on, or leave the source out.",
    )


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(list(key)))


def _weighted_rows(
    source_of_row: NDArray[np.int32], sources: Sequence[SourceSection], seed: int, epoch: int
) -> NDArray[np.int64]:
    """Row indices of an epoch: weight 2.5 is two copies of each row of a source and a random half of its rows.

    Raises:
        DataError: a weight is so small that none of its source's rows would be seen.
    """
    parts: list[NDArray[np.int64]] = []
    for index, source in enumerate(sources):
        members = np.flatnonzero(source_of_row == index)
        copies = int(source.weight)
        parts += [members] * copies
        extra = int((source.weight - copies) * len(members) + 0.5)
        if extra:
            chosen = weight_generator(seed, epoch, index).permutation(len(members))[:extra]
            parts.append(members[np.sort(chosen)])
        elif not copies and len(members):
            raise weighs_nothing(source, len(members))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _group(lengths: NDArray[np.int64], row_ids: NDArray[np.int64], batching: BatchingSection) -> MicroBatches:
    """Group rows, in the order given (`length_grouped`: sorted by length first)."""
    capacity = batching.tokens
    if batching.mode == "packing":
        pack = next_fit if batching.order == "sequential" else best_fit
        chosen = row_ids.tolist()
        groups = [[chosen[position] for position in group] for group in pack(lengths[row_ids], capacity)]
        return MicroBatches(groups, np.full(len(groups), capacity, dtype=np.int64))
    if batching.order == "length_grouped":
        row_ids = row_ids[np.argsort(lengths[row_ids], kind="stable")]
    return MicroBatches(*pad_greedily(lengths, row_ids, capacity))
