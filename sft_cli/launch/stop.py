"""A worker that is told to stop finishes its step and saves first."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While entered, SIGINT and SIGTERM only set a flag. Handlers are restored on leaving.

    Signals may come twice (a launcher and a scheduler both send them): the last one stays.
    """

    def __init__(self) -> None:
        self.requested = 0
        """Number of the signal that asked for a stop; 0 while nobody did."""
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
        self.requested = number
