"""Where the time before the first step goes: a GPU that waits is paid like one that works."""

from __future__ import annotations

import time
from collections.abc import Callable

IMPORTS, DATA, KERNELS, REGIONS, MODEL, OPTIMIZER, WARM_UP, CHECKS = (
    "imports", "data", "kernels", "compiled layers", "model", "optimizer", "warm-up", "checks",
)  # fmt: skip
_SHORTEST_TOLD_SECONDS = 0.1


class StartUp:
    """Seconds of each part, in the order of time.

    Args:
        began: when this process did, by `clock`.
    """

    def __init__(self, began: float, clock: Callable[[], float] = time.time) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._last = began

    def lap(self, part: str) -> None:
        """Everything since the last lap was this part."""
        now = self._clock()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now

    def line(self) -> str:
        """For the run's log; parts that took no time are left out."""
        told = [f"{part} {seconds:.1f}" for part, seconds in self.seconds.items() if seconds >= _SHORTEST_TOLD_SECONDS]
        return f"ready in {sum(self.seconds.values()):.0f} s: {', '.join(told)}"
