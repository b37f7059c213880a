"""How fast a run is: tokens, seconds and memory between two lines of the log."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_GIB = 2**30


@dataclass(frozen=True)
class Window:
    """What the steps since the last reading did, over all ranks."""

    steps: int
    tokens: int
    """Real tokens, without padding."""
    supervised_tokens: int
    slots: int
    """Tokens with padding and fillers."""
    step_seconds: float
    """Mean wall time of a step, waiting for data included; evaluations and checkpoints are not."""
    data_wait_seconds: float
    """Mean share of it that this rank waited for its next batches."""
    tokens_per_second: float
    """Real tokens of all ranks over wall time."""
    mfu: float | None
    """Model FLOPs utilization, 0 to 1; None where the peak of the device is not known (a CPU)."""
    peak_memory_gib: float


@dataclass(frozen=True)
class PhaseSeconds:
    """Mean seconds of a step on this rank's device, its waiting for other ranks included."""

    forward: float
    backward: float
    """Recomputation, gradient reduction, and updates that are made in it, included."""
    optimizer: float
    """Clipping and update."""


@dataclass(frozen=True)
class Totals:
    """What a run has done so far, over all ranks."""

    steps: int
    tokens: int
    supervised_tokens: int
    slots: int
    seconds: float
    """Wall time of training, evaluations and checkpoints included."""
    training_seconds: float
    """The same without them."""
    tokens_per_second: float
    """Real tokens over `training_seconds`."""


class Meter:
    """Counts steps and reads them out a window at a time.

        meter.start()
        for step in steps:
            with meter.waiting_for_data():
                batches = next(loader)
            ...
            meter.count_step(tokens=..., supervised_tokens=..., slots=..., squared_lengths=...)
            if time_to_log:
                window = meter.read()
            with meter.paused():
                evaluate(...)

    On a GPU read it after the step's numbers have been read from the device, so that the work counted is done.
    """

    def __init__(
        self,
        *,
        flops_per_token: Callable[[float], float] = lambda row_tokens: 0.0,
        peak_flops_per_second: float | None = None,
        peak_memory_gib: Callable[[], float] | None = None,
        before: Totals | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            flops_per_token: of forward and backward, recomputation not counted, by the length of a token's row.
            peak_flops_per_second: of all devices together; None: `mfu` is None.
            peak_memory_gib: default: resident memory of this process.
            before: what a resumed run had done when it was saved.
            clock: seconds from any origin.
        """
        self._before = before
        self._flops_per_token = flops_per_token
        self._peak_flops_per_second = peak_flops_per_second
        self.peak_memory_gib = peak_memory_gib if peak_memory_gib is not None else peak_resident_memory_gib
        self._clock = clock
        self._total = _Counts()
        self._window = _Counts()
        self.start()

    def start(self) -> None:
        """The first step begins now; what came before (warm-up, compilation) is not counted."""
        self._total = _Counts()
        self._window = _Counts()
        self._started_at = self._window_started_at = self._clock()

    @contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        begin = self._clock()
        yield
        self._window.data_wait_seconds += self._clock() - begin

    @contextmanager
    def paused(self) -> Iterator[None]:
        """An evaluation or a checkpoint: time that is no step's."""
        begin = self._clock()
        yield
        self._window.paused_seconds += self._clock() - begin

    def count_step(self, *, tokens: int, supervised_tokens: int, slots: int, squared_lengths: int = 0) -> None:
        """One optimizer step is done. All are sums over all ranks and micro-batches."""
        self._window.steps += 1
        self._window.tokens += tokens
        self._window.supervised_tokens += supervised_tokens
        self._window.slots += slots
        self._window.squared_lengths += squared_lengths

    def read(self) -> Window:
        """The steps since the last reading; begins a new window.

        Raises:
            ValueError: there was no step.
        """
        counts, now = self._window, self._clock()
        if counts.steps == 0:
            raise ValueError("no step since the last reading")
        seconds = now - self._window_started_at - counts.paused_seconds
        tokens_per_second = counts.tokens / max(seconds, 1e-9)
        window = Window(
            steps=counts.steps,
            tokens=counts.tokens,
            supervised_tokens=counts.supervised_tokens,
            slots=counts.slots,
            step_seconds=seconds / counts.steps,
            data_wait_seconds=counts.data_wait_seconds / counts.steps,
            tokens_per_second=tokens_per_second,
            mfu=self._mfu(tokens_per_second, counts.squared_lengths / max(counts.tokens, 1)),
            peak_memory_gib=self.peak_memory_gib(),
        )
        self._total.add(counts)
        self._window, self._window_started_at = _Counts(), now
        return window

    def totals(self) -> Totals:
        """Of the whole run, steps that have not been read included."""
        counts = _Counts()
        counts.add(self._total)
        counts.add(self._window)
        seconds = self._clock() - self._started_at
        training_seconds = seconds - counts.paused_seconds
        if self._before is not None:
            counts.steps += self._before.steps
            counts.tokens += self._before.tokens
            counts.supervised_tokens += self._before.supervised_tokens
            counts.slots += self._before.slots
            seconds += self._before.seconds
            training_seconds += self._before.training_seconds
        return Totals(
            steps=counts.steps,
            tokens=counts.tokens,
            supervised_tokens=counts.supervised_tokens,
            slots=counts.slots,
            seconds=seconds,
            training_seconds=training_seconds,
            tokens_per_second=counts.tokens / max(training_seconds, 1e-9),
        )

    def _mfu(self, tokens_per_second: float, row_tokens: float) -> float | None:
        """Achieved over peak FLOP/s; real tokens, no recomputation (PaLM, arXiv:2204.02311, appendix B).

        Args:
            row_tokens: mean over tokens of the length of their rows, those of the window's own batches.
        """
        if self._peak_flops_per_second is None:
            return None
        return tokens_per_second * self._flops_per_token(row_tokens) / self._peak_flops_per_second


@dataclass
class _Counts:
    steps: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    slots: int = 0
    squared_lengths: int = 0
    data_wait_seconds: float = 0.0
    paused_seconds: float = 0.0

    def add(self, other: _Counts) -> None:
        self.steps += other.steps
        self.tokens += other.tokens
        self.supervised_tokens += other.supervised_tokens
        self.slots += other.slots
        self.squared_lengths += other.squared_lengths
        self.data_wait_seconds += other.data_wait_seconds
        self.paused_seconds += other.paused_seconds


def peak_resident_memory_gib(platform: str = sys.platform) -> float:
    """The most memory this process has had resident so far. Linux counts ru_maxrss in KiB, macOS in bytes."""
    unit_bytes = 1 if platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes / _GIB
