"""Whole numbers of a launch, in Python's own arithmetic: Triton's `cdiv` and `next_power_of_2` are for kernels as well,
and take 8 microseconds on the host, where a small model's step makes over a thousand calls."""

from __future__ import annotations


def cdiv(count: int, each: int) -> int:
    """How many of `each` hold `count`."""
    return -(-count // each)


def next_power_of_2(number: int) -> int:
    """The smallest that is no smaller."""
    return 1 << max(0, number - 1).bit_length()
