"""What is said of a run's GPUs: a rank's trouble as bits of one number, told in words when it changes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sft_cli.telemetry.clock_limits import TOLD

ECC_ERRORS = 1 << 16
NVLINK_ERRORS = 1 << 17
LOW_POWER_LIMIT = 1 << 18
"""Beside the bits of `telemetry/clock_limits.py`, which end below."""

_WORDS = {
    **TOLD,
    ECC_ERRORS: "has had memory errors that ECC could not correct since the run began: its numbers may be wrong",
    NVLINK_ERRORS: "has had NVLink errors since the run began: gathering may be slow; look at its links",
    LOW_POWER_LIMIT: "has a power limit below its own (`nvidia-smi -q -d POWER` shows both), and will be slower for it",
}
_COMES_AND_GOES = sum(TOLD)
"""Counted errors stay counted, and a limit that was low at the start is not looked at again."""
QUIET_SECONDS = 60.0
"""Trouble that was not seen for so long is over; what flickers is one trouble, and said once."""


@dataclass(frozen=True)
class Place:
    """Where a rank runs."""

    ranks: int
    ranks_per_node: int

    def of(self, rank: int) -> str:
        """`rank 11`, and where there are several nodes `rank 11 (GPU 3 of node 1)`."""
        if self.ranks == self.ranks_per_node:
            return f"rank {rank}"
        node, gpu = divmod(rank, self.ranks_per_node)
        return f"rank {rank} (GPU {gpu} of node {node})"


class HealthWatch:
    """Remembers what it has said."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._last_seen: dict[tuple[int, int], float] = {}

    def notices(self, of_ranks: Sequence[int], now_seconds: float) -> Iterator[str]:
        """What is new, a line each.

        Args:
            of_ranks: bits of each rank, of the time since the last call.
        """
        for rank, bits in enumerate(of_ranks):
            for bit, words in _WORDS.items():
                if bits & bit:
                    if (rank, bit) not in self._last_seen:
                        yield f"WARNING: the GPU of {self._place.of(rank)} {words}"
                    self._last_seen[rank, bit] = now_seconds
        yield from self._ended(now_seconds)

    def _ended(self, now_seconds: float) -> Iterator[str]:
        for (rank, bit), seen in list(self._last_seen.items()):
            if bit & _COMES_AND_GOES and now_seconds - seen > QUIET_SECONDS:
                del self._last_seen[rank, bit]
                yield f"no longer: the GPU of {self._place.of(rank)} {_WORDS[bit]}"
