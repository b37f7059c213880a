"""Arithmetic of busy intervals: (start, end) pairs in seconds."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time without overlaps, in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        elif end > start:
            merged.append((start, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """Seconds that at least one of them covers."""
    return sum(end - start for start, end in union(intervals))


def without(intervals: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """The time of the first that none of the others covers."""
    left: list[Interval] = []
    removed, at = union(others), 0
    for start, end in union(intervals):
        while at < len(removed) and removed[at][1] <= start:
            at += 1
        ahead = at
        while ahead < len(removed) and removed[ahead][0] < end:
            if removed[ahead][0] > start:
                left.append((start, removed[ahead][0]))
            start = max(start, removed[ahead][1])
            ahead += 1
        if start < end:
            left.append((start, end))
    return left


def within(intervals: Iterable[Interval], bounds: Interval) -> list[Interval]:
    """What of them lies between two moments."""
    first, last = bounds
    return [(max(start, first), min(end, last)) for start, end in intervals if start < last and end > first]
