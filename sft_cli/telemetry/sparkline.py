"""The course of a number in one line of text. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

_LEVELS = "▁▂▃▄▅▆▇█"
_MOST = 256
"""Values kept: more than a terminal has columns."""


@dataclass(frozen=True)
class Course:
    """A number since its beginning, in a bounded number of means over equally many values."""

    means: tuple[float, ...] = ()
    values_a_mean: int = 1
    pending_sum: float = 0.0
    pending: int = 0

    def plus(self, value: float) -> Course:
        """The course with one more value; what is no finite number is left out."""
        if not math.isfinite(value):
            return self
        pending_sum, pending = self.pending_sum + value, self.pending + 1
        if pending < self.values_a_mean:
            return replace(self, pending_sum=pending_sum, pending=pending)
        means = (*self.means, pending_sum / pending)
        if len(means) < _MOST:
            return replace(self, means=means, pending_sum=0.0, pending=0)
        halved = tuple((one + other) / 2 for one, other in zip(means[::2], means[1::2], strict=True))
        return Course(halved, 2 * self.values_a_mean)


def sparkline(values: Sequence[float], columns: int) -> str:
    """At most so many characters, each the mean of its share of the values; none where there is nothing to compare."""
    columns = min(columns, len(values))
    if columns < 2:
        return ""
    bounds = [at * len(values) // columns for at in range(columns + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(bounds)]
    low, high = min(means), max(means)
    if high == low:
        return _LEVELS[0] * columns
    return "".join(_LEVELS[round((mean - low) / (high - low) * (len(_LEVELS) - 1))] for mean in means)
