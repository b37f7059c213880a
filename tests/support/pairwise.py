"""A few combinations of options in which every pair of values occurs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any


def pairwise(options: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Combinations, one value an option, so that any two values of two options stand in one of them together.

    Greedy: of all combinations always the one that adds most pairs. Not the fewest, but near it.
    """
    every = [dict(zip(options, values, strict=True)) for values in product(*options.values())]
    missing = {pair for combination in every for pair in _pairs(combination)}
    chosen = []
    while missing:
        best = max(every, key=lambda combination: len(_pairs(combination) & missing))
        chosen.append(best)
        missing -= _pairs(best)
    return chosen


def _pairs(combination: Mapping[str, Any]) -> set[tuple[tuple[str, str], ...]]:
    return set(combinations([(key, repr(value)) for key, value in combination.items()], 2))
