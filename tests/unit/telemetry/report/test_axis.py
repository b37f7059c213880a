from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sft_cli.telemetry.report.axis import Axis, steps_axis, tick_texts, values_axis


@given(st.lists(st.floats(-1e200, 1e200), min_size=1, max_size=20), st.booleans(), st.booleans())
def test_every_value_is_on_the_axis_and_there_are_a_few_ticks(
    values: list[float], from_zero: bool, may_be_logarithmic: bool
) -> None:
    axis = values_axis(values, from_zero=from_zero, may_be_logarithmic=may_be_logarithmic)
    assert all(-1e-9 <= axis.place(value) <= 1 + 1e-9 for value in values)
    ticks = axis.ticks()
    assert len(ticks) <= 12
    assert all(-1e-6 <= axis.place(tick) <= 1 + 1e-6 for tick in ticks)
    assert len(tick_texts(ticks, 1.0)) == len(ticks)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, ["0", "2.5", "5", "7.5", "10"]),
        (0, 1.06e-5, ["0", "5e-6", "1e-5"]),
        (0, 0.0016, ["0", "5e-4", "1e-3", "1.5e-3"]),
        (0, 49_000, ["0", "20k", "40k"]),
        (1800, 1990, ["1,800", "1,850", "1,900", "1,950"]),
        (0, 3.2e6, ["0", "1M", "2M", "3M"]),
        (-1, 1, ["-1", "-0.5", "0", "0.5", "1"]),
    ],
)
def test_round_numbers_short_words(low: float, high: float, ticks: list[str]) -> None:
    assert tick_texts(Axis(low, high).ticks(), 1.0) == ticks


def test_shares_are_percent() -> None:
    assert tick_texts(Axis(0, 0.44).ticks(), 100.0, "%") == ["0", "20%", "40%"]


def test_one_spike_makes_a_logarithmic_axis_where_that_is_wanted() -> None:
    values = [1.0] * 50 + [80.0]
    axis = values_axis(values, from_zero=True, may_be_logarithmic=True)
    assert axis.is_logarithmic
    assert tick_texts(axis.ticks(), 1.0) == ["1", "2", "5", "10", "20", "50", "100"]
    assert tick_texts(values_axis([1.0] * 9 + [5e5], from_zero=True, may_be_logarithmic=True).ticks(), 1.0) == [
        "1", "100", "10000",
    ]  # fmt: skip
    assert axis.place(10.0) - axis.place(1.0) == pytest.approx(axis.place(100.0) - axis.place(10.0))
    assert not values_axis(values, from_zero=True).is_logarithmic
    assert not values_axis([0.0, *values], from_zero=True, may_be_logarithmic=True).is_logarithmic


def test_far_apart_sizes_are_each_written_in_full() -> None:
    assert tick_texts([0.01, 10, 10_000], 1.0) == ["0.01", "10", "10000"]


@pytest.mark.parametrize("value", [0.0, 5.0, -2.0, 1e-12])
def test_one_value_alone_has_room(value: float) -> None:
    axis = values_axis([value, value], from_zero=False)
    assert axis.low < value < axis.high
    assert math.isfinite(axis.place(value))


def test_a_run_of_no_step_has_an_axis() -> None:
    assert steps_axis(0, 0).place(0) == 0
