"""The events of a trace as values: operations and ranges of the host, launches, and what ran on the GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sft_cli.plan.profiling import TORCH_STEP
from sft_cli.telemetry.profile.trace_file import read_events

Thread = tuple[Any, Any]
"""Process and thread."""
_MICROSECONDS = 1e-6
_CUDA = 1
"""The device type of a CUDA GPU in an event about memory; a CPU's is 0."""


@dataclass(slots=True)
class Span:
    """Something that took a while on one thread of the host. Times are seconds since the first event."""

    name: str
    start: float
    end: float
    thread: Thread

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(slots=True)
class Operation(Span):
    """An operator, or a node of backward."""

    sequence: int | None = None
    """Forward operators and the backward nodes that they made have the same number."""
    forward_thread: int = 0
    """Of a node of backward: a number of the thread that made it. 0 for anything else."""


@dataclass(slots=True)
class Launch(Span):
    """A call of the CUDA runtime or driver."""

    correlation: int = 0
    """The kernel or copy that it started has the same."""


@dataclass(slots=True)
class Kernel:
    """A kernel, a copy or a fill on the GPU."""

    name: str
    start: float
    end: float
    stream: tuple[Any, Any]
    """Device and stream."""
    correlation: int

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(slots=True)
class Allocation:
    """How much was allocated once a tensor came or went."""

    time: float
    allocated_bytes: int
    on_gpu: bool


@dataclass
class Trace:
    steps: list[Span] = field(default_factory=list)
    """The profiled steps, in order."""
    operations: list[Operation] = field(default_factory=list)
    ranges: list[Span] = field(default_factory=list)
    """All ranges but the steps."""
    launches: list[Launch] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    memory: list[Allocation] = field(default_factory=list)

    @property
    def step_seconds(self) -> float:
        """Mean wall time of a step."""
        return (self.steps[-1].end - self.steps[0].start) / len(self.steps)


def read_trace(path: Path) -> Trace:
    """A trace.json or trace.json.gz.

    Raises:
        ValueError: it is not a trace of profiled steps.
    """
    return trace_of(read_events(path))


def trace_of(events: Iterable[dict[str, Any]]) -> Trace:
    """The events of Chrome's format, in any order.

    Raises:
        ValueError: no profiled step is among them.
    """
    trace, names, origin = Trace(), dict[str, str](), None
    for event in events:
        if event["ph"] == "M" or "cat" not in event:
            continue
        # Counted from the first event: the difference of two numbers of microseconds since 1970 has lost its digits.
        origin = event["ts"] if origin is None else origin
        name = names.setdefault(event["name"], event["name"])
        _add(trace, event, name, (event["ts"] - origin) * _MICROSECONDS)
    if not trace.steps:
        raise ValueError("no profiled step is in it")
    trace.steps.sort(key=lambda step: step.start)
    trace.kernels.sort(key=lambda kernel: kernel.start)
    trace.memory.sort(key=lambda allocation: allocation.time)
    return trace


def _add(trace: Trace, event: dict[str, Any], name: str, start: float) -> None:
    arguments = event.get("args") or {}
    if event["ph"] == "i":
        if name == "[memory]" and arguments.get("Total Allocated") is not None:
            on_gpu = arguments.get("Device Type") == _CUDA
            trace.memory.append(Allocation(start, arguments["Total Allocated"], on_gpu))
        return
    if event["ph"] != "X":
        return
    end, thread = start + event.get("dur", 0) * _MICROSECONDS, (event["pid"], event["tid"])
    match event["cat"]:
        case "cpu_op":
            sequence, forward_thread = arguments.get("Sequence number"), arguments.get("Fwd thread id", 0)
            trace.operations.append(Operation(name, start, end, thread, sequence, forward_thread))
        case "user_annotation":
            (trace.steps if name.startswith(TORCH_STEP) else trace.ranges).append(Span(name, start, end, thread))
        case "cuda_runtime" | "cuda_driver":
            trace.launches.append(Launch(name, start, end, thread, arguments.get("correlation", 0)))
        case "kernel" | "gpu_memcpy" | "gpu_memset":
            stream = (arguments.get("device"), arguments.get("stream"))
            trace.kernels.append(Kernel(name, start, end, stream, arguments.get("correlation", 0)))
