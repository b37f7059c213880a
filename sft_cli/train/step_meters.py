"""Where the time of a step goes, measured on the rank's own device without waiting for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sft_cli.plan.profiling import BACKWARD, FORWARD, OPTIMIZER
from sft_cli.telemetry.meter import PhaseSeconds
from sft_cli.train.moments import HostMoments, Moments, moments_of

_TIMED_BLOCKS = 8
"""Neighbours in the middle of the model, so that a hybrid's kinds of layers are all among them."""
_PICOSECONDS = 1e12


@dataclass(frozen=True)
class Own:
    """What a rank tells the others with each step."""

    block_time: int = 0
    """Picoseconds a slot that some blocks' forward took in the newest step that is known; 0: none yet. What is inside
    a block waits for no other rank, so it tells ranks apart, where a step takes all of them the same time."""
    health: int = 0
    """Bits of `telemetry/health.py`."""


@dataclass
class _Timeline:
    """Of one step."""

    slots: int
    """Of its first micro-batch, the one whose blocks are timed."""
    marks: list[tuple[str, Any]] = field(default_factory=list)
    """From each moment on, this."""
    blocks: list[Any] = field(default_factory=list)
    """Begin and end of each timed block, in turn."""


class StepMeters:
    """Two marks a micro-batch and two a step: microseconds. A step is read when its last mark is past.

    Args:
        moments: of the device.
        blocks: of the model, where there are other ranks to compare with.
        health: bits of this rank's GPU since the last call.
    """

    def __init__(
        self, moments: Moments, blocks: Sequence[nn.Module] = (), health: Callable[[], int] = lambda: 0
    ) -> None:
        self._moments = moments
        self._health = health
        self._current: _Timeline | None = None
        self._is_timing_blocks = False
        self._waiting: deque[_Timeline] = deque()
        self._sums: dict[str, float] = {}
        self._steps = 0
        self._block_time = 0
        middle = max(0, (len(blocks) - _TIMED_BLOCKS) // 2)
        for block in blocks[middle : middle + _TIMED_BLOCKS]:
            self._time(block)

    @classmethod
    def of_ranks(
        cls, device: torch.device, ranks: int, blocks: Sequence[nn.Module], health: Callable[[], int]
    ) -> StepMeters:
        """For a run. Blocks are timed where there is another rank.

        Args:
            blocks: sharded already: a layer is gathered before its time begins.
        """
        return cls(moments_of(device), blocks if ranks > 1 else (), health)

    def own(self) -> Own:
        """Before a step: what is known by now."""
        self._read_past()
        return Own(self._block_time, self._health())

    def begin(self, slots: int) -> None:
        """A step begins.

        Args:
            slots: of its first micro-batch.
        """
        self._current = _Timeline(slots)
        self._is_timing_blocks = True

    def mark(self, phase: str) -> None:
        """FORWARD, BACKWARD or OPTIMIZER begins; nothing outside a step, as in a rehearsal."""
        if self._current is not None:
            self._current.marks.append((phase, self._moments.now()))
            if phase == BACKWARD:
                self._is_timing_blocks = False  # of the first micro-batch; the others are no different

    def end(self) -> None:
        """The step is told to the device."""
        assert self._current is not None
        self.mark("")
        self._waiting.append(self._current)
        self._current = None

    def read(self) -> PhaseSeconds | None:
        """Means over the steps since the last reading that are past; None where none is."""
        self._read_past()
        if not self._steps:
            return None
        forward, backward, optimizer = (self._sums.get(phase, 0.0) for phase in (FORWARD, BACKWARD, OPTIMIZER))
        steps, self._steps = self._steps, 0
        self._sums.clear()
        return PhaseSeconds(forward / steps, backward / steps, optimizer / steps)

    def _read_past(self) -> None:
        while self._waiting and self._moments.is_past(self._waiting[0].marks[-1][1]):
            step = self._waiting.popleft()
            for (phase, begin), (_, end) in zip(step.marks, step.marks[1:], strict=False):
                self._sums[phase] = self._sums.get(phase, 0.0) + self._moments.seconds(begin, end)
            self._steps += 1
            pairs = zip(step.blocks[::2], step.blocks[1::2], strict=True)
            seconds = sum(self._moments.seconds(begin, end) for begin, end in pairs)
            self._block_time = round(seconds * _PICOSECONDS / step.slots)
            for moment in (*(moment for _, moment in step.marks), *step.blocks):
                self._moments.forget(moment)

    def _time(self, block: nn.Module) -> None:
        def note(*unused: Any) -> None:
            if self._current is not None and self._is_timing_blocks:
                self._current.blocks.append(self._moments.now())

        if block._compiled_call_impl is not None:
            # Compiled with its hooks. Not asked for otherwise: it imports the compiler, which takes seconds.
            note = torch.compiler.disable(note)
        # After FSDP2's own, which waits for the weights; and before it lets go of them.
        block.register_forward_pre_hook(note)
        block.register_forward_hook(note, prepend=True)


class NoMeters(StepMeters):
    """For a step whose time nobody asks for."""

    def __init__(self) -> None:
        super().__init__(HostMoments())

    def begin(self, slots: int) -> None:
        pass

    def end(self) -> None:
        pass
