from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sft_cli.kernels.counts import cdiv, next_power_of_2


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20))
def test_as_many_as_hold_all_and_no_more(count: int, each: int) -> None:
    found = cdiv(count, each)
    assert found * each >= count
    assert (found - 1) * each < count or found == 0


@pytest.mark.parametrize(("number", "power"), [(1, 1), (2, 2), (3, 4), (64, 64), (65, 128), (5120, 8192)])
def test_the_smallest_power_that_is_no_smaller(number: int, power: int) -> None:
    assert next_power_of_2(number) == power
