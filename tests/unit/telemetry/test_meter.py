from __future__ import annotations

import pytest

from sft_cli.telemetry.meter import Meter, Totals, peak_resident_memory_gib


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def take_step(meter: Meter, clock: Clock, *, wait: float, work: float, tokens: int = 80) -> None:
    with meter.waiting_for_data():
        clock.now += wait
    clock.now += work
    meter.count_step(tokens=tokens, supervised_tokens=tokens // 2, slots=100)


def test_window_of_two_steps(clock: Clock) -> None:
    meter = Meter(clock=clock)
    clock.now += 60  # built before the first step
    meter.start()
    take_step(meter, clock, wait=1.0, work=3.0, tokens=60)
    take_step(meter, clock, wait=2.0, work=4.0, tokens=100)
    window = meter.read()
    assert (window.steps, window.tokens, window.supervised_tokens, window.slots) == (2, 160, 80, 200)
    assert window.step_seconds == pytest.approx(5.0)
    assert window.data_wait_seconds == pytest.approx(1.5)
    assert window.tokens_per_second == pytest.approx(16.0)
    assert window.mfu is None


def test_windows_do_not_overlap(clock: Clock) -> None:
    meter = Meter(clock=clock)
    take_step(meter, clock, wait=0, work=1)
    meter.read()
    take_step(meter, clock, wait=0, work=2)
    second = meter.read()
    assert (second.steps, second.tokens) == (1, 80)
    assert second.step_seconds == pytest.approx(2.0)


def test_evaluations_and_checkpoints_are_no_steps_time(clock: Clock) -> None:
    meter = Meter(clock=clock)
    take_step(meter, clock, wait=0, work=4)
    with meter.paused():
        clock.now += 100
    take_step(meter, clock, wait=0, work=4)
    assert meter.read().step_seconds == pytest.approx(4.0)
    totals = meter.totals()
    assert totals.seconds == pytest.approx(108.0)
    assert totals.training_seconds == pytest.approx(8.0)
    assert totals.tokens_per_second == pytest.approx(20.0)


def test_totals_count_read_and_unread_steps(clock: Clock) -> None:
    meter = Meter(clock=clock)
    for _ in range(3):
        take_step(meter, clock, wait=0.5, work=0.5)
    meter.read()
    take_step(meter, clock, wait=0, work=1)
    totals = meter.totals()
    assert (totals.steps, totals.tokens, totals.supervised_tokens, totals.slots) == (4, 320, 160, 400)
    assert totals == meter.totals()
    assert totals.seconds == pytest.approx(4.0)


def test_mfu_is_achieved_over_peak(clock: Clock) -> None:
    meter = Meter(flops_per_token=lambda row_tokens: 6e9 + 1e6 * row_tokens, peak_flops_per_second=1e12, clock=clock)
    clock.now += 2
    meter.count_step(tokens=100, supervised_tokens=50, slots=128, squared_lengths=60**2 + 40**2)
    assert meter.read().mfu == pytest.approx(50 * (6e9 + 52e6) / 1e12)


def test_reading_without_a_step(clock: Clock) -> None:
    with pytest.raises(ValueError, match="no step"):
        Meter(clock=clock).read()


def test_resident_memory_is_in_gib() -> None:
    here = peak_resident_memory_gib()
    assert 0.01 < here < 64
    assert peak_resident_memory_gib(platform="darwin") == pytest.approx(here / 1024, rel=0.1)


def test_a_resumed_run_counts_on(clock: Clock) -> None:
    before = Totals(10, 1000, 400, 1024, seconds=50.0, training_seconds=40.0, tokens_per_second=25.0)
    meter = Meter(clock=clock, before=before)
    meter.start()
    clock.now += 10.0
    meter.count_step(tokens=500, supervised_tokens=200, slots=512)
    totals = meter.totals()
    assert (totals.steps, totals.tokens, totals.supervised_tokens, totals.slots) == (11, 1500, 600, 1536)
    assert (totals.seconds, totals.training_seconds, totals.tokens_per_second) == (60.0, 50.0, 30.0)
