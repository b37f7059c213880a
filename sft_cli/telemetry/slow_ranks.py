"""Which ranks compute slower than the others. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from sft_cli.telemetry.health import Place

WINDOW_STEPS = 20
"""A rank's time is the median of so many steps: packs differ, and so does a step in which a host was interrupted."""
SLOW_SHARE = 0.10
"""Slower by this much, or more, is told."""
_AGAIN_SHARE = 0.07
"""And by less than this is over, so that a rank at the limit is not told again and again."""


@dataclass(frozen=True)
class Slowest:
    rank: int
    excess: float
    """Its time over the median of the others', minus 1."""


class SlowRanks:
    """Compares the ranks' times of the same work; all ranks come to the same result."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._times: list[list[int]] = [[] for _ in range(place.ranks)]
        self._told: set[int] = set()
        self.slowest: Slowest | None = None
        """None until every rank has been timed in enough steps."""

    def notices(self, of_ranks: Sequence[int]) -> Iterator[str]:
        """What is new, a line each.

        Args:
            of_ranks: each rank's time in a step, in any unit; 0 where it has none.
        """
        if len(of_ranks) < 2 or not all(of_ranks):
            return
        for times, time in zip(self._times, of_ranks, strict=True):
            times.append(time)
        if len(self._times[0]) < WINDOW_STEPS:
            return
        medians = [median(times) for times in self._times]
        for times in self._times:
            times.clear()
        excesses = [own / median(medians[:rank] + medians[rank + 1 :]) - 1 for rank, own in enumerate(medians)]
        self.slowest = Slowest(*max(enumerate(excesses), key=lambda item: item[1]))
        for rank, excess in enumerate(excesses):
            if excess >= SLOW_SHARE and rank not in self._told:
                self._told.add(rank)
                yield (
                    f"WARNING: {self._place.of(rank)} computes {excess:.0%} slower than the others, who wait for it "
                    "in every step (its layers' own time, without communication); compare its GPU's clocks and "
                    "temperature, and what else its host does"
                )
            elif excess < _AGAIN_SHARE and rank in self._told:
                self._told.remove(rank)
                yield f"no longer: {self._place.of(rank)} computes slower than the others"
