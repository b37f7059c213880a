from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sft_cli.telemetry.report.thinning import smoothed, smoothing_span, thinned


def test_few_points_stay_as_they_are() -> None:
    assert thinned([1, 2, 5], [0.5, 0.25, 4.0]) == [(1, 0.5), (2, 0.25), (5, 4.0)]


@given(st.lists(st.floats(-100, 100), min_size=50, max_size=400), st.integers(1, 20))
def test_extremes_ends_and_order_are_kept(values: list[float], columns: int) -> None:
    steps = list(range(10, 10 + len(values)))
    points = thinned(steps, values, columns)
    assert len(points) <= 2 * columns + 2
    kept = [value for _, value in points]
    assert (min(kept), max(kept)) == (min(values), max(values))
    assert (points[0], points[-1]) == ((steps[0], values[0]), (steps[-1], values[-1]))
    assert points == sorted(set(points))
    assert all(values[int(step) - 10] == value for step, value in points)


def test_a_spike_is_at_its_own_step() -> None:
    values = [1.0] * 100_000
    values[77_777] = 50.0
    assert (77_777, 50.0) in thinned(range(100_000), values)


def test_steps_may_have_a_gap() -> None:
    steps = [*range(100), *range(100_000, 100_100)]
    points = thinned(steps, [float(step) for step in steps], columns=10)
    assert (points[0], points[-1]) == ((0, 0.0), (100_099, 100_099.0))


def test_smoothing_neither_lags_nor_shifts() -> None:
    line = [3.0 * at for at in range(1000)]
    assert smoothed(line) == pytest.approx(line)
    assert smoothed([]) == []


def test_smoothing_takes_noise_away() -> None:
    values = [1.0 + (-1) ** at for at in range(2000)]
    assert smoothing_span(2000) == 50
    assert all(abs(value - 1) < 0.05 for value in smoothed(values)[25:-25])
