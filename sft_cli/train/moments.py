"""Points in time on a rank's device, compared when they are past: nobody waits for one."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Moments(Protocol):
    """A clock. What it gives means something to it alone."""

    def now(self) -> Any:
        """When the device comes to this point of its work."""

    def is_past(self, moment: Any) -> bool:
        """Whether it has; never waits."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two that are past."""

    def forget(self, moment: Any) -> None:
        """It will not be asked for again."""


class HostMoments(Moments):
    """A CPU does its work when it is told to."""

    def now(self) -> float:
        return time.perf_counter()

    def is_past(self, moment: float) -> bool:
        return True

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def forget(self, moment: float) -> None:
        pass


class DeviceMoments(Moments):
    """Events on the stream that computes. They are used again: making one takes longer than recording it."""

    def __init__(self) -> None:
        self._free: list[torch.cuda.Event] = []

    def now(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def is_past(self, moment: torch.cuda.Event) -> bool:
        return moment.query()

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return begin.elapsed_time(end) / 1e3

    def forget(self, moment: torch.cuda.Event) -> None:
        self._free.append(moment)


def moments_of(device: torch.device) -> Moments:
    return HostMoments() if device.type == "cpu" else DeviceMoments()
