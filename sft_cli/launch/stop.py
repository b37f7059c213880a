"""A worker that is told to stop finishes its step and saves first."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Each asks for a checkpoint and an end. SIGUSR1 is how Slurm (`--signal=USR1@120`) tells that a job will be ended."""

STACKS_SIGNAL = signal.SIGUSR2
"""Makes a worker write where all its threads are."""


def exit_signal(number: int) -> int:
    """What the exit code of a run says that was stopped by it: SIGUSR1 announces a SIGTERM, and counts as one."""
    return signal.SIGTERM if number == signal.SIGUSR1 else number


class StopRequest:
    """While entered, SIGINT, SIGTERM and SIGUSR1 only set a flag. Handlers are restored on leaving.

    Signals may come twice (a launcher and a scheduler both send them): the last one stays.
    """

    def __init__(self) -> None:
        self.requested = 0
        """SIGINT or SIGTERM, as which SIGUSR1 counts; 0 while nobody asked for a stop."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in STOP_SIGNALS:
            self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = exit_signal(number)
