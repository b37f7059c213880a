from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sft_cli.telemetry.profile.timeline import length, union, within, without

intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: (min(pair), max(pair))))


def cells(given: list[tuple[float, float]]) -> set[int]:
    """The unit cells that intervals of whole numbers cover."""
    return {cell for start, end in given for cell in range(int(start), int(end))}


@given(intervals, intervals)
def test_all_of_it_against_unit_cells(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> None:
    merged = union(first)
    assert cells(merged) == cells(first)
    assert length(first) == len(cells(first))
    assert all(before[1] < after[0] for before, after in pairwise(merged))
    assert cells(without(first, second)) == cells(first) - cells(second)
    assert cells(within(first, (5, 20))) == cells(first) & set(range(5, 20))
