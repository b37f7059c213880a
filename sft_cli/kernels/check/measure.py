"""How far numbers are off, and how long calls take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

TOLERANCES = {"float32": (1e-4, 2e-4), "bfloat16": (0.01, 0.02), "float16": (0.004, 0.008)}
"""Of forward and of backward, by dtype, as a share of a tensor's 2-norm.

One rounding to bfloat16 is off by up to 2^-9 = 0.2%; kernels round a few times inside, and their backward more often.
"""
SEGMENT_FACTOR = 5.0
"""A single short segment may be off by this much more; a leak from its neighbour is off by 0.3 and up."""
_REPEATS = 11
_BUDGET_SECONDS = 1.0


@dataclass(frozen=True)
class Off:
    """By how much a tensor differs from what it should be; as shares of 2-norms."""

    whole: float
    worst_segment: float
    segment: int | None
    """Which segment that is."""


def off_by(found: Tensor, expected: Tensor, segments: list[int] | None = None, dim: int | None = None) -> Off:
    """Compares two tensors of one shape, whole and segment by segment.

    A segment's difference is measured by its own norm, or by what a stretch of its length has on average where that
    is more: a gradient that ought to be 0 is no share of anything.

    Args:
        segments: lengths along `dim`; None where the tensor has no tokens, or no segments.
    """
    difference, expected = (found - expected).double(), expected.double()
    scale = float(expected.norm())
    whole = float(difference.norm()) / scale if scale else float(difference.norm())
    if segments is None or dim is None:
        return Off(whole, 0.0, None)
    shares = []
    for length, part, own in zip(segments, difference.split(segments, dim), expected.split(segments, dim), strict=True):
        usual = scale * (length / sum(segments)) ** 0.5
        shares.append(float(part.norm()) / max(float(own.norm()), usual, 1e-30))
    worst = max(range(len(shares)), key=shares.__getitem__)
    return Off(whole, shares[worst], worst)


def median_ms(prepare: Callable[[], Any], work: Callable[[Any], object], device: torch.device) -> float:
    """Median milliseconds of a call, once it is warm: by events on a GPU, which do not see what Python does between.

    Args:
        prepare: makes what each call gets, and is not timed.
    """
    times: list[float] = []
    begin = time.perf_counter()
    work(prepare())
    while len(times) < _REPEATS and (len(times) < 3 or time.perf_counter() - begin < _BUDGET_SECONDS):
        ready = partial(work, prepare())
        times.append(_gpu_ms(ready) if device.type == "cuda" else _cpu_ms(ready))
    return statistics.median(times)


def _cpu_ms(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def _gpu_ms(work: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)
