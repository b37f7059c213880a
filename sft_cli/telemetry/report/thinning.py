"""Fewer points of a long series, so that no spike is lost; and its course without the noise. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

COLUMNS = 500
"""Of a chart: more than one of them to a pixel would show nothing more."""
_SMOOTHED_SHARE = 40
"""A smoothed value is the mean of this share of all."""
_FEWEST_SMOOTHED = 5

Point = tuple[float, float]


def thinned(steps: Sequence[float], values: Sequence[float], columns: int = COLUMNS) -> list[Point]:
    """At most two points a column, the lowest and the highest in their order; the first and the last point always.

    Args:
        steps: ascending.
    """
    if len(steps) <= 2 * columns:
        return list(zip(steps, values, strict=True))
    first, width = steps[0], (steps[-1] - steps[0]) / columns
    kept, begin = [0], 0
    for column in range(1, columns + 1):
        end = bisect_left(steps, first + column * width, begin) if column < columns else len(steps)
        if end > begin:
            here = values[begin:end]
            kept += sorted({begin + here.index(min(here)), begin + here.index(max(here))})
        begin = end
    kept.append(len(steps) - 1)
    return [(steps[at], values[at]) for at in dict.fromkeys(kept)]


def smoothed(values: Sequence[float]) -> list[float]:
    """Means around each value, of as many before it as after it, so that the course does not lag behind."""
    reach = smoothing_span(len(values)) // 2
    sums = [0.0, *accumulate(values)]
    course = []
    for at in range(len(values)):
        near = min(reach, at, len(values) - 1 - at)
        course.append((sums[at + near + 1] - sums[at - near]) / (2 * near + 1))
    return course


def smoothing_span(count: int) -> int:
    """How many values a smoothed one is the mean of."""
    return max(_FEWEST_SMOOTHED, count // _SMOOTHED_SHARE)
