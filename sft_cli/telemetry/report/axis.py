"""Where a number stands on an axis, and which numbers are written beside it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from sft_cli.telemetry.fields import power_text

_TICKS = 4
_NICE = (1, 2, 2.5, 5, 10)
_SPIKY = 12
"""From this ratio of the largest value to the median on, an axis is logarithmic: else one spike makes all flat."""
_MARGIN = 0.06
_MANY_DECADES = 2.5
_MANY_SIZES = 1e3
_SMALL = 1e-2


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, as 0 to 1."""

    low: float
    high: float
    is_logarithmic: bool = False

    def place(self, value: float) -> float:
        if self.is_logarithmic:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int = _TICKS) -> list[float]:
        """Round numbers within the axis, a few."""
        if self.is_logarithmic:
            return self._logarithmic_ticks(most)
        step = _nice_step((self.high - self.low) / most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [at * step for at in range(first, last + 1)]

    def _logarithmic_ticks(self, most: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        if math.log10(self.high / self.low) < _MANY_DECADES:
            found = [nice * 10.0**power for power in range(first, last + 1) for nice in (1, 2, 5)]
        else:
            every = -(-(last - first) // most)
            found = [10.0**power for power in range(math.ceil(math.log10(self.low)), last + 1, every)]
        return [tick for tick in found if self.low <= tick <= self.high]


def steps_axis(first: float, last: float) -> Axis:
    """The axis below a chart."""
    return Axis(first, last if last > first else first + 1)


def values_axis(values: Sequence[float], *, from_zero: bool, may_be_logarithmic: bool = False) -> Axis:
    """The axis beside a chart of at least one value.

    Args:
        from_zero: begin at 0 where no value is below it.
        may_be_logarithmic: where the largest is far from most.
    """
    low, high = min(values), max(values)
    if may_be_logarithmic and low > 0 and high > _SPIKY * median(values):
        return Axis(low / 1.3, high * 1.3, is_logarithmic=True)
    if from_zero and low >= 0:
        return Axis(0.0, high * (1 + _MARGIN) if high > 0 else 1.0)
    room = (high - low) * _MARGIN or abs(high) * _MARGIN or 1.0
    return Axis(low - room, high + room)


def tick_texts(ticks: Sequence[float], scale: float, suffix: str = "") -> list[str]:
    """With the digits that tell them apart, and no more."""
    numbers = [tick * scale for tick in ticks]
    largest = max(map(abs, numbers), default=0.0)
    if any(0 < abs(number) < largest / _MANY_SIZES for number in numbers):
        return [f"{number:g}{suffix}" for number in numbers]
    if 0 < largest < _SMALL:
        return ["0" if number == 0 else power_text(number) + suffix for number in numbers]
    size, letter = (1e6, "M") if largest >= 1e6 else (1e3, "k") if largest >= 1e4 else (1.0, "")
    return ["0" if number == 0 else f"{_plain(number / size)}{letter}{suffix}" for number in numbers]


def _nice_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(nice * power for nice in _NICE if nice * power >= least * (1 - 1e-9))


def _plain(number: float) -> str:
    text = f"{number:,.6f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
