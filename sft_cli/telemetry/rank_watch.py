"""What rank 0 tells of all ranks: GPUs in trouble, and ranks that are slower than the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from sft_cli.telemetry.health import HealthWatch, Place
from sft_cli.telemetry.slow_ranks import Slowest, SlowRanks


class RankWatch:
    """Args:
    place: of the run's ranks.
    clock: seconds from any origin.
    """

    def __init__(self, place: Place, clock: Callable[[], float] = time.monotonic) -> None:
        self._health = HealthWatch(place)
        self._slow = SlowRanks(place)
        self._clock = clock

    @property
    def slowest(self) -> Slowest | None:
        """None with one rank, and until it is known."""
        return self._slow.slowest

    def notices(self, block_times: Sequence[int], health: Sequence[int]) -> Iterator[str]:
        """What is new after a step, a line each; both of every rank, as `train/step_meters.py` has them."""
        yield from self._health.notices(health, self._clock())
        yield from self._slow.notices(block_times)
