from __future__ import annotations

import pytest
from support.traces import Events, gpu_step

from sft_cli.telemetry.profile.lanes import COLUMNS, Lane, lanes_of, memory_of, typical_step
from sft_cli.telemetry.profile.summary import locate

US = 1e-6


def lanes(events: Events) -> dict[str, Lane]:
    trace = events.trace()
    return {lane.title: lane for lane in lanes_of(trace, locate(trace), typical_step(trace))}


def at(lane: Lane, microseconds: float) -> str | None:
    return lane.columns[int(microseconds / 1000 * COLUMNS)]


def test_each_lane_shows_what_ran_when() -> None:
    found = lanes(gpu_step())
    parts = found["parts of the step"]
    moments = {
        50: "data wait",
        200: "forward",
        310: "backward",
        350: "recomputation",
        450: "backward",
        690: "optimizer",
    }
    assert {moment: at(parts, moment) for moment in moments} == moments
    assert at(parts, 850) is None
    assert parts.seconds["backward"] == pytest.approx((300 - 80) * US)
    gpu = found["GPU, stream 7"]
    assert [at(gpu, moment) for moment in (100, 300, 425, 460, 480, 700, 850)] == [
        None, "GEMM", "delta rule", "elementwise", "delta rule", None, "optimizer",
    ]  # fmt: skip
    assert gpu.seconds["GEMM"] == pytest.approx(200 * US)
    host = found["host"]
    assert at(host, 170) == "GEMM"
    assert host.seconds["delta rule"] == pytest.approx(70 * US)


def test_what_is_inside_covers_what_is_around_it() -> None:
    events = Events()
    events.step(1, 0, 1000)
    events.op("aten::mul", 0, 900)
    events.op("aten::mm", 100, 800)
    lane = lanes(events)["host"]
    assert lane.seconds == pytest.approx({"elementwise": 200 * US, "GEMM": 700 * US})
    assert (at(lane, 50), at(lane, 500), at(lane, 950)) == ("elementwise", "GEMM", None)


def test_the_step_that_is_shown_is_the_one_of_median_length() -> None:
    events = Events()
    for number, (start, end) in enumerate([(0, 300), (300, 500), (500, 900)]):
        events.step(number, start, end)
    assert typical_step(events.trace()).name == "ProfilerStep#0"


def test_memory_is_the_gpus_where_there_is_one_and_the_most_of_each_column() -> None:
    events = Events()
    events.step(1, 0, 1000)
    for time, gib in ((100.5, 2), (100.6, 5), (100.7, 3), (700.5, 1)):
        events.memory(time, gib * 2**30, device_type=1)
    events.memory(300, 2**40, device_type=0)
    trace = events.trace()
    assert memory_of(trace, trace.steps[0]) == [(96, 5.0), (672, 1.0)]
