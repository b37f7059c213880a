from __future__ import annotations

from sft_cli.telemetry.start_up import DATA, IMPORTS, KERNELS, MODEL, StartUp


def test_parts_are_the_time_since_the_part_before() -> None:
    times = iter([14.0, 14.5, 14.5625, 20.0625])
    start_up = StartUp(10.0, lambda: next(times))
    for part in (IMPORTS, DATA, KERNELS, MODEL):
        start_up.lap(part)
    assert list(start_up.seconds) == [IMPORTS, DATA, KERNELS, MODEL]
    assert sum(start_up.seconds.values()) == 10.0625
    assert start_up.line() == "ready in 10 s: imports 4.0, data 0.5, model 5.5"  # kernels: 0.05 s


def test_a_part_that_comes_twice_is_one() -> None:
    times = iter([1.0, 2.0, 4.0])
    start_up = StartUp(0.0, lambda: next(times))
    for part in (DATA, MODEL, DATA):
        start_up.lap(part)
    assert start_up.seconds == {DATA: 3.0, MODEL: 1.0}
