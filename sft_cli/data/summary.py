"""What tokenised rows look like in numbers: lengths, their histogram, and padding against packing. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from sft_cli.data.order import steps_of_epoch, train_micro_batches
from sft_cli.data.rows import TokenizedRows
from sft_cli.plan.plan import Plan

WAYS = (("padding", "shuffled"), ("padding", "length_grouped"), ("packing", "shuffled"))
"""`batching.mode` and `batching.order` of the ways to batch that are compared."""

MOST_BINS = 24
_WIDE = 12
"""From this ratio of the longest to the shortest row on, bins grow with the length: equal ones would show one peak."""
_NICE_WIDTHS = (1, 2, 5)
_PREFERRED = ((10, 12.5, 16, 20, 25, 32, 40, 50, 63, 80), (10, 16, 25, 40, 63), (10, 25, 63), (10, 32), (10,))
"""Renard's preferred numbers (ISO 3): steps that look equal on a logarithmic axis, the finest series first."""


@dataclass(frozen=True)
class Lengths:
    """Tokens a row, over all rows."""

    total: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: int


@dataclass(frozen=True)
class Bin:
    """How many rows have from `low` to `high` tokens, both included."""

    low: int
    high: int
    rows: int


@dataclass(frozen=True)
class Batching:
    """What one way to batch makes of the rows in the first epoch."""

    mode: str
    order: str
    is_recipes: bool
    """Whether this is what the recipe asks for."""
    real_share: float
    """Real tokens over slots, 0 to 1. Fillers of ranks that have no micro-batch left are not counted."""
    micro_batches: int
    """Over all ranks."""
    examples_per_micro_batch: float
    steps: int | None
    """Optimizer steps of the epoch; None where there are fewer micro-batches than ranks, which training refuses."""
    examples_per_step: float | None


def measure(lengths: NDArray[np.int64]) -> Lengths:
    """Total, mean and percentiles (linear between neighbours) of at least one length."""
    p50, p90, p99 = (float(value) for value in np.percentile(lengths, (50, 90, 99)))
    return Lengths(int(lengths.sum()), float(lengths.mean()), p50, p90, p99, int(lengths.max()))


def histogram(lengths: NDArray[np.int64]) -> tuple[Bin, ...]:
    """At most about `MOST_BINS` bins with round bounds: of one width, or growing where lengths differ much.

    Args:
        lengths: (rows,) int64, at least one, each from 1.
    """
    low, high = int(lengths.min()), int(lengths.max())
    edges = _growing_edges(low, high) if high >= _WIDE * low else _equal_edges(low, high)
    counts = np.histogram(lengths, bins=np.array(edges))[0].tolist()
    return tuple(Bin(start, end - 1, rows) for start, end, rows in zip(edges[:-1], edges[1:], counts, strict=True))


def compare_batching(rows: TokenizedRows, plan: Plan) -> tuple[Batching, ...]:
    """The ways to batch of `WAYS`, and the recipe's own where it is another; each exactly as training would do it.

    Args:
        rows: the training rows.
        plan: its batching (other than mode and order), seed, weights, ranks and `tokens_per_step` count.

    Raises:
        DataError: a weight leaves no row of a source.
    """
    own = (plan.recipe.batching.mode, plan.recipe.batching.order)
    ways = WAYS if own in WAYS else (*WAYS, own)
    return tuple(_batch(rows, plan, mode, order, is_recipes=(mode, order) == own) for mode, order in ways)


def _batch(rows: TokenizedRows, plan: Plan, mode: str, order: str, *, is_recipes: bool) -> Batching:
    recipe = plan.recipe
    batching = recipe.batching.model_copy(update={"mode": mode, "order": order})
    batches = train_micro_batches(
        rows, plan.model_copy(update={"recipe": recipe.model_copy(update={"batching": batching})}), 0
    )
    examples = np.fromiter(chain.from_iterable(batches.groups), dtype=np.int64)
    ranks = plan.world.ranks
    enough = len(batches) >= ranks
    steps = len(steps_of_epoch(batches, ranks, recipe.train.tokens_per_step)) if enough else None
    return Batching(
        mode=mode,
        order=order,
        is_recipes=is_recipes,
        real_share=float(rows.lengths[examples].sum() / batches.slots.sum()),
        micro_batches=len(batches),
        examples_per_micro_batch=len(examples) / len(batches),
        steps=steps,
        examples_per_step=None if steps is None else len(examples) / steps,
    )


def _equal_edges(low: int, high: int) -> list[int]:
    """Multiples of the smallest round width with which the bins are few enough."""
    widths = (nice * 10**power for power in range(19) for nice in _NICE_WIDTHS)
    width = next(width for width in widths if high // width - low // width < MOST_BINS)
    first = low // width * width
    return list(range(first, high + width + 1, width))


def _growing_edges(low: int, high: int) -> list[int]:
    """Preferred numbers around the lengths, of the finest series that gives few enough bins."""
    for series in _PREFERRED:
        numbers = sorted({round(number * 10**power) for power in range(-1, 19) for number in series})
        first = max(index for index, number in enumerate(numbers) if number <= low)
        end = next(index for index, number in enumerate(numbers) if number > high)
        if end - first <= MOST_BINS:
            break
    return numbers[first : end + 1]
