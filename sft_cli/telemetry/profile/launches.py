"""Whether the host keeps up: what it takes to enqueue a step, and how long the GPU waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from sft_cli.telemetry.profile import timeline
from sft_cli.telemetry.profile.events import Launch, Trace

_SYNCHRONISING = ("Synchronize", "cudaMemcpy(", "cuMemcpyDtoH", "cudaEventQuery")
"""Calls in which the host waits for the GPU."""
_FULL_QUEUE_TIMES = 20
"""A launch that takes this many times the median waited for room in the GPU's queue."""


@dataclass(frozen=True)
class Launching:
    """Of one step."""

    enqueue_seconds: float
    """The step's time in which the host neither waited for the GPU nor for data: what enqueuing it takes."""
    starved_seconds: float
    """In which the GPU stood still because the kernel that came next had not been launched."""


def measure_launching(trace: Trace, data_waits: list[timeline.Interval]) -> Launching:
    """Of a trace with kernels.

    The host's time is that of the step minus waiting: for data, for the GPU in a synchronising call, and for room in
    the GPU's queue (what a launch takes beyond the median, where it takes 20 times that).
    """
    steps = len(trace.steps)
    bounds = (trace.steps[0].start, trace.steps[-1].end)
    waits = [*data_waits, *_waits_for_gpu(trace)]
    idle_host = timeline.length(timeline.within(waits, bounds))
    return Launching(
        enqueue_seconds=(bounds[1] - bounds[0] - idle_host) / steps,
        starved_seconds=timeline.length(timeline.without(_starved(trace, bounds), data_waits)) / steps,
    )


def _waits_for_gpu(trace: Trace) -> list[timeline.Interval]:
    started = {kernel.correlation for kernel in trace.kernels}
    launches = [launch for launch in trace.launches if launch.correlation in started]
    usual = median(launch.seconds for launch in launches) if launches else 0.0
    waits = [(launch.start + usual, launch.end) for launch in launches if launch.seconds > _FULL_QUEUE_TIMES * usual]
    return waits + [(call.start, call.end) for call in trace.launches if _is_synchronising(call)]


def _is_synchronising(call: Launch) -> bool:
    return any(word in call.name for word in _SYNCHRONISING)


def _starved(trace: Trace, bounds: timeline.Interval) -> list[timeline.Interval]:
    """From the end of what ran before to the moment when the next kernel had been launched, where that was later."""
    launched = {launch.correlation: launch.end for launch in trace.launches}
    starved: list[timeline.Interval] = []
    free_since = bounds[0]
    for kernel in trace.kernels:
        ready = min(launched.get(kernel.correlation, kernel.start), kernel.start)
        if ready > free_since:
            starved.append((free_since, ready))
        free_since = max(free_since, kernel.end)
    return timeline.within(starved, bounds)
