from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lengths import ultrachat_like

from sft_cli.data.packing import best_fit, next_fit

CAPACITY = 64
lengths_lists = st.lists(st.integers(1, CAPACITY), max_size=60)


@given(lengths_lists)
def test_every_row_is_in_exactly_one_pack_and_no_pack_overflows(lengths: list[int]) -> None:
    packs = best_fit(lengths, CAPACITY)
    assert sorted(row for pack in packs for row in pack) == list(range(len(lengths)))
    assert all(0 < sum(lengths[row] for row in pack) <= CAPACITY for pack in packs)


@given(lengths_lists)
def test_each_row_goes_where_the_least_room_suffices(lengths: list[int]) -> None:
    """Against the plain quadratic algorithm: the same number of packs with the same rooms."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        sufficient = [room for room in rooms if room >= length]
        if sufficient:
            rooms.remove(min(sufficient))
        rooms.append((min(sufficient) if sufficient else CAPACITY) - length)
    found = [CAPACITY - sum(lengths[row] for row in pack) for pack in best_fit(lengths, CAPACITY)]
    assert sorted(found) == sorted(rooms)


@given(lengths_lists)
def test_it_is_deterministic(lengths: list[int]) -> None:
    assert best_fit(lengths, CAPACITY) == best_fit(np.array(lengths, dtype=np.int64), CAPACITY)


@given(lengths_lists)
def test_next_fit_keeps_the_order(lengths: list[int]) -> None:
    packs = next_fit(lengths, CAPACITY)
    assert [row for pack in packs for row in pack] == list(range(len(lengths)))
    assert all(sum(lengths[row] for row in pack) <= CAPACITY for pack in packs)


@pytest.mark.parametrize("pack", [best_fit, next_fit])
@pytest.mark.parametrize("length", [0, CAPACITY + 1])
def test_a_length_that_no_pack_can_hold_is_refused(pack, length: int) -> None:
    with pytest.raises(ValueError, match="fit packs"):
        pack([1, length], CAPACITY)


def test_chat_lengths_fill_more_than_99_percent() -> None:
    lengths = ultrachat_like(207_865)
    packs = best_fit(lengths, 8192)
    assert lengths.sum() / (len(packs) * 8192) > 0.99


def test_a_million_lengths_in_seconds() -> None:
    """Two on an idle core; the bound is what the page promises."""
    lengths = ultrachat_like(1_000_000)
    start = time.process_time()
    packs = best_fit(lengths, 8192)
    assert time.process_time() - start < 10
    assert sorted(row for pack in packs for row in pack) == list(range(1_000_000))
