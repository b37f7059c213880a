"""One profile: everything that is read off a trace and the run's own facts, per step."""

from __future__ import annotations

from dataclasses import dataclass

from sft_cli.telemetry.profile import timeline
from sft_cli.telemetry.profile.context import Context, Placed, part_of_range, place
from sft_cli.telemetry.profile.events import Trace
from sft_cli.telemetry.profile.facts import Facts
from sft_cli.telemetry.profile.kinds import COMMUNICATION, kind_of
from sft_cli.telemetry.profile.launches import Launching, measure_launching
from sft_cli.telemetry.profile.operations import Measured, Table, tabulate

_GLOO = "gloo:"
"""How torch's ranges of a collective on the host begin."""


@dataclass(frozen=True)
class Summary:
    """Seconds are those of one step."""

    steps: int
    step_seconds: float
    cpu: Table
    gpu: Table
    launching: Launching | None
    """None where nothing ran on a GPU."""
    gpu_busy_seconds: float
    """In which something ran on the GPU, on whatever stream."""
    data_wait_seconds: float
    exposed_communication_seconds: float
    """In which communication ran and nothing else did: on the GPU, without one on the host."""
    facts: Facts

    @property
    def has_gpu(self) -> bool:
        return self.launching is not None

    @property
    def table(self) -> Table:
        """Of the device that does the work."""
        return self.gpu if self.has_gpu else self.cpu

    @property
    def gpu_busy(self) -> float | None:
        """Share of the step; None without a GPU."""
        return self.gpu_busy_seconds / self.step_seconds if self.has_gpu else None

    @property
    def launch_bound(self) -> bool | None:
        """The host takes longer to enqueue a step than the GPU to run it; None without a GPU."""
        return None if self.launching is None else self.launching.enqueue_seconds > self.gpu_busy_seconds

    @property
    def recomputation_seconds(self) -> float:
        """Of the device's work."""
        row = self.table.parts.get("recomputation")
        return row.seconds if row else 0.0

    @property
    def recompute_share(self) -> float:
        """Of the device's work."""
        return self.recomputation_seconds / self.table.seconds if self.table.seconds else 0.0

    def kind_share(self, kind: str) -> float:
        """Of the device's work."""
        row = self.table.kinds.get(kind)
        return row.seconds / self.table.seconds if row else 0.0


@dataclass(frozen=True)
class Placement:
    """What every kernel belongs to."""

    placed: Placed
    kernels: list[Context]


def locate(trace: Trace) -> Placement:
    """Contexts of everything in a trace; a kernel's is that of the call that launched it."""
    placed = place(trace)
    launched = {launch.correlation: context for launch, context in zip(trace.launches, placed.launches, strict=True)}
    nowhere = Context()
    return Placement(placed, [launched.get(kernel.correlation, nowhere) for kernel in trace.kernels])


def summarise(trace: Trace, placement: Placement, facts: Facts) -> Summary:
    """Reads a trace."""
    steps, placed = len(trace.steps), placement.placed
    cpu = [
        Measured(operation.name, kind_of(operation.name, context), context.part, context.slot, seconds)
        for operation, context, seconds in zip(trace.operations, placed.operations, placed.self_seconds, strict=True)
    ]
    gpu = [
        Measured(kernel.name, kind_of(kernel.name, context), context.part, context.slot, kernel.seconds)
        for kernel, context in zip(trace.kernels, placement.kernels, strict=True)
    ]
    waits = [(range_.start, range_.end) for range_ in trace.ranges if part_of_range(range_.name) == "data wait"]
    data_wait = timeline.length(waits)
    busy = [(kernel.start, kernel.end) for kernel in trace.kernels]
    return Summary(
        steps=steps,
        step_seconds=trace.step_seconds,
        cpu=tabulate(cpu, steps),
        gpu=tabulate(gpu, steps),
        launching=measure_launching(trace, waits) if trace.kernels else None,
        gpu_busy_seconds=timeline.length(busy) / steps,
        data_wait_seconds=data_wait / steps,
        exposed_communication_seconds=_exposed(trace, gpu, cpu) / steps,
        facts=facts,
    )


def _exposed(trace: Trace, gpu: list[Measured], cpu: list[Measured]) -> float:
    """Seconds of communication, of all steps, beside which nothing is computed."""
    if trace.kernels:
        pairs = list(zip(trace.kernels, gpu, strict=True))
        communication = [(k.start, k.end) for k, one in pairs if one.kind == COMMUNICATION]
        work = [(k.start, k.end) for k, one in pairs if one.kind != COMMUNICATION]
    else:
        main = trace.steps[0].thread
        communication = [(r.start, r.end) for r in trace.ranges if r.name.startswith(_GLOO)]
        work = [
            (operation.start, operation.end)
            for operation, one in zip(trace.operations, cpu, strict=True)
            if operation.thread == main and one.kind != COMMUNICATION
        ]
    return timeline.length(timeline.without(communication, work))
