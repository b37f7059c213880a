"""What every operation and launch belongs to: its part of the step and its kernel slot; and its own time.

On one thread events are nested. Backward runs in nodes, each with the number of the forward operator that made it, so
what backward does for a norm is known to be a norm's, whatever its kernels are called.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sft_cli.plan.profiling import (
    BACKWARD,
    DATA_WAIT,
    FORWARD,
    OPTIMIZER,
    RECOMPUTATION,
    SLOT,
    TORCH_UPDATE,
)
from sft_cli.telemetry.profile.events import Launch, Operation, Span, Thread, Trace

PARTS = {
    DATA_WAIT: "data wait",
    FORWARD: "forward",
    BACKWARD: "backward",
    RECOMPUTATION: "recomputation",
    OPTIMIZER: "optimizer",
}
OTHER = "other"
"""The part of what is in none of these."""
_NODE = "autograd::engine::evaluate_function: "
"""How torch marks a node of backward, on whatever thread it runs."""


@dataclass(frozen=True, slots=True)
class Context:
    part: str = OTHER
    slot: str | None = None


_NOWHERE = Context()


@dataclass
class Placed:
    """Args are parallel to the lists of the trace."""

    operations: list[Context]
    self_seconds: list[float]
    """Of each operation, those inside it not counted."""
    launches: list[Context]


def place(trace: Trace) -> Placed:
    """Context and own time of all operations and launches."""
    forward = _Sweep(trace, {})
    slots = forward.slots_of_forward()
    final = _Sweep(trace, slots) if slots else forward
    return Placed(final.operations, final.self_seconds, final.launches)


def part_of_range(name: str) -> str | None:
    """The part of a step that a range marks; None for a range of anything else."""
    if name.startswith(TORCH_UPDATE):
        return "optimizer"
    return PARTS.get(name)


class _Sweep:
    """One pass over all threads."""

    def __init__(self, trace: Trace, slots: dict[int, str]) -> None:
        self._trace = trace
        self._slots = slots
        self.operations = [_NOWHERE] * len(trace.operations)
        self.self_seconds = [operation.seconds for operation in trace.operations]
        self.launches = [_NOWHERE] * len(trace.launches)
        threads: dict[Thread, list[tuple[Span, int]]] = defaultdict(list)
        for spans in (trace.ranges, trace.operations, trace.launches):
            for index, span in enumerate(spans):
                threads[span.thread].append((span, index))
        for spans_of_thread in threads.values():
            self._thread(spans_of_thread)

    def slots_of_forward(self) -> dict[int, str]:
        """Number of a forward operator to the slot that it ran in: of several with one number the last is the one that
        made the node, since that counts the number on."""
        found: dict[int, str | None] = {}
        latest: dict[int, float] = {}
        for operation, context in zip(self._trace.operations, self.operations, strict=True):
            number = operation.sequence
            if number is None or context.part != "forward" or operation.start < latest.get(number, -1.0):
                continue
            found[number], latest[number] = context.slot, operation.start
        return {number: slot for number, slot in found.items() if slot is not None}

    def _thread(self, spans: Iterable[tuple[Span, int]]) -> None:
        # Of two that begin together, the longer one is around the other; a range is around an operation.
        order = sorted(spans, key=lambda item: (item[0].start, -item[0].end, isinstance(item[0], Operation | Launch)))
        stack: list[tuple[float, Context, int | None]] = []  # end, context inside, the operation if it is one
        for span, index in order:
            while stack and stack[-1][0] <= span.start:
                stack.pop()
            outer = stack[-1][1] if stack else _NOWHERE
            if isinstance(span, Launch):
                self.launches[index] = outer
                continue
            inner = self._inside(span, outer)
            if isinstance(span, Operation):
                self.operations[index] = inner
                parent = next((at for _, _, at in reversed(stack) if at is not None), None)
                if parent is not None:
                    # Clocks are read one after the other: a child may end a little after its parent.
                    parent_end = self._trace.operations[parent].end
                    self.self_seconds[parent] -= min(span.end, parent_end) - span.start
                stack.append((span.end, inner, index))
            else:
                stack.append((span.end, inner, None))

    def _inside(self, span: Span, outer: Context) -> Context:
        if isinstance(span, Operation):
            if not span.forward_thread and not span.name.startswith(_NODE):
                return outer
            part = outer.part if outer.part in ("backward", "recomputation") else "backward"
            slot = self._slots.get(span.sequence, outer.slot) if span.sequence is not None else outer.slot
            return _context(part, slot, outer)
        if span.name.startswith(SLOT):
            return _context(outer.part, span.name.removeprefix(SLOT), outer)
        part_of_name = part_of_range(span.name)
        if part_of_name is None or (part_of_name == "forward" and outer.part == "backward"):
            return outer
        # A recomputed layer begins anew: what it is inside of is the node that asked for it.
        return _context(part_of_name, None if part_of_name == "recomputation" else outer.slot, outer)


def _context(part: str, slot: str | None, outer: Context) -> Context:
    return outer if (part, slot) == (outer.part, outer.slot) else Context(part, slot)
