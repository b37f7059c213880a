"""Rows to padded micro-batches: how many rows go together, and to which length they are padded. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SMALLEST_STEP = 16
_STEPS_PER_OCTAVE = 8


def padded_length(longest: int, capacity: int) -> int:
    """The length that rows are padded to: one of few, so that kernels meet few shapes.

    They are compiled or tuned anew for a shape they have not seen. From 128 tokens on there are eight lengths between
    a power of two and the next, evenly apart; below, multiples of 16: 56 lengths up to 8,192, and at most an eighth
    more slots than the longest row needs.

    Args:
        longest: tokens of the longest row, from 1 to `capacity`.
        capacity: token slots of a micro-batch, which a row that fills it is padded to.
    """
    octave = 1 << (longest - 1).bit_length()
    step = max(_SMALLEST_STEP, octave // (2 * _STEPS_PER_OCTAVE))
    return min(-(-longest // step) * step, capacity)


def pad_greedily(
    lengths: NDArray[np.int64], row_ids: NDArray[np.int64], capacity: int
) -> tuple[list[list[int]], NDArray[np.int64]]:
    """Group rows in the order given, while rows * padded length fits `capacity`.

    Args:
        lengths: (rows,) tokens of every row of the data.
        row_ids: those to group.
        capacity: token slots of a micro-batch.

    Returns:
        For each micro-batch its rows, and (micro-batches,) int64 its slots: rows * padded length.

    Raises:
        ValueError: a row is longer than `capacity`.
    """
    groups: list[list[int]] = []
    slots: list[int] = []
    longest = 0
    for row, length in zip(row_ids.tolist(), lengths[row_ids].tolist(), strict=True):
        if length > capacity:
            raise ValueError(f"a row of {length} tokens doesn't fit {capacity} slots")
        longest = max(longest, length)
        width = padded_length(longest, capacity)
        if groups and (len(groups[-1]) + 1) * width <= capacity:
            groups[-1].append(row)
            slots[-1] = len(groups[-1]) * width
        else:
            groups.append([row])
            slots.append(padded_length(length, capacity))
            longest = length
    return groups, np.array(slots, dtype=np.int64)
