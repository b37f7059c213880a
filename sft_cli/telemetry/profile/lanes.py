"""The timeline of one step as lanes: what each thread of the host and each stream of the GPU did, in a few colours."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median_low

from sft_cli.telemetry.profile import timeline
from sft_cli.telemetry.profile.context import part_of_range
from sft_cli.telemetry.profile.events import Span, Trace
from sft_cli.telemetry.profile.kinds import kind_of
from sft_cli.telemetry.profile.summary import Placement

COLUMNS = 960
"""Into which a step is cut; each shows what took most of it."""
_HOST_LANES, _GPU_LANES = 2, 4
"""The busiest ones."""


@dataclass(frozen=True)
class Lane:
    title: str
    columns: tuple[str | None, ...]
    """What took most of each; None where that is nothing."""
    seconds: dict[str, float]
    """Of each kind or part in this lane."""


def typical_step(trace: Trace) -> Span:
    """The step of median length."""
    middle = median_low(step.seconds for step in trace.steps)
    return next(step for step in trace.steps if step.seconds == middle)


def lanes_of(trace: Trace, placement: Placement, step: Span) -> Iterator[Lane]:
    """Parts of the step, then the host's threads, then the GPU's streams."""
    parts = _Lane("parts of the step", step)
    for range_ in _outermost_first(trace.ranges):
        part = part_of_range(range_.name)
        if part is not None:
            parts.cover(range_.start, range_.end, part)
    yield parts.done()
    yield from _busiest(_host_lanes(trace, placement, step), _HOST_LANES)
    yield from _busiest(_gpu_lanes(trace, placement, step), _GPU_LANES)


def memory_of(trace: Trace, step: Span) -> list[tuple[float, float]]:
    """Most GiB allocated in each column of the step that saw a change: (column, GiB). The GPU's where there is one."""
    points = [point for point in trace.memory if step.start <= point.time <= step.end]
    on_gpu = any(point.on_gpu for point in points)
    most: dict[int, int] = {}
    for point in points:
        if point.on_gpu == on_gpu:
            column = min(COLUMNS - 1, int((point.time - step.start) / step.seconds * COLUMNS))
            most[column] = max(most.get(column, point.allocated_bytes), point.allocated_bytes)
    return [(column, value / 2**30) for column, value in sorted(most.items())]


def _outermost_first(spans: Iterable[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.start, -span.end))


def _host_lanes(trace: Trace, placement: Placement, step: Span) -> list[_Lane]:
    lanes: dict[Hashable, _Lane] = {}
    items = sorted(
        zip(trace.operations, placement.placed.operations, strict=True), key=lambda item: (item[0].start, -item[0].end)
    )
    for operation, context in items:
        if operation.thread not in lanes:
            title = "host" if operation.thread == step.thread else f"host, thread {operation.thread[1]}"
            lanes[operation.thread] = _Lane(title, step)
        lanes[operation.thread].cover(operation.start, operation.end, kind_of(operation.name, context))
    return list(lanes.values())


def _gpu_lanes(trace: Trace, placement: Placement, step: Span) -> list[_Lane]:
    lanes: dict[Hashable, _Lane] = {}
    for kernel, context in zip(trace.kernels, placement.kernels, strict=True):
        if kernel.stream not in lanes:
            lanes[kernel.stream] = _Lane(f"GPU, stream {kernel.stream[1]}", step)
        lanes[kernel.stream].cover(kernel.start, kernel.end, kind_of(kernel.name, context))
    return list(lanes.values())


def _busiest(lanes: list[_Lane], count: int) -> list[Lane]:
    done = [lane.done() for lane in lanes]
    return sorted((lane for lane in done if lane.seconds), key=lambda lane: -sum(lane.seconds.values()))[:count]


class _Lane:
    """Painted from the outside in: what begins later and inside covers what is around it."""

    def __init__(self, title: str, step: Span) -> None:
        self._title = title
        self._step = step
        self._filled: list[dict[str, float]] = [defaultdict(float) for _ in range(COLUMNS)]
        self._around: list[tuple[float, str]] = []

    def cover(self, start: float, end: float, what: str) -> None:
        while self._around and self._around[-1][0] <= start:
            self._around.pop()
        if self._around:
            self._add(start, min(end, self._around[-1][0]), self._around[-1][1], -1.0)
        self._add(start, end, what, 1.0)
        self._around.append((end, what))

    def _add(self, start: float, end: float, what: str, sign: float) -> None:
        width = self._step.seconds / COLUMNS
        for first, last in timeline.within([(start, end)], (self._step.start, self._step.end)):
            at = int((first - self._step.start) / width)
            while at < COLUMNS and (begin := self._step.start + at * width) < last:
                self._filled[at][what] += sign * max(0.0, min(last, begin + width) - max(first, begin))
                at += 1

    def done(self) -> Lane:
        width, seconds, columns = self._step.seconds / COLUMNS, Counter[str](), list[str | None]()
        for filled in self._filled:
            seconds.update(filled)
            most = max(filled, key=lambda what: filled[what], default=None)
            idle = width - sum(filled.values())
            columns.append(most if most is not None and filled[most] > idle else None)
        return Lane(self._title, tuple(columns), {what: value for what, value in seconds.items() if value > 0})
