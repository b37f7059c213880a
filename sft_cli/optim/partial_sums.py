"""Sums that kernels leave in parts, one for each of their programs."""

from __future__ import annotations

import torch
from torch import Tensor

PLACES = 1 << 20
"""Of the buffer, unless one kernel needs more: 4 MiB, which are summed at once when they are used up."""


class PartialSums:
    """One number in the end, the same whenever the parts are: no kernel adds to what another has written."""

    def __init__(self) -> None:
        self._parts = torch.empty(0)
        self._size, self._used = 0, 0
        self._sums: list[Tensor] = []

    def places(self, count: int, device: torch.device) -> Tensor:
        """float32 (count,) on the device, undefined: every number has to be written, on the current stream."""
        if self._used + count > self._size:
            self._add_up()
        if count > self._size:
            self._size = max(count, PLACES)
            self._parts = torch.empty(self._size, device=device)
        self._used += count
        return self._parts[self._used - count : self._used]

    def take(self) -> list[Tensor]:
        """float32 scalars, whose sum is that of all parts since the last time."""
        self._add_up()
        sums, self._sums = self._sums, []
        return sums

    def _add_up(self) -> None:
        if self._used:
            self._sums.append(self._parts[: self._used].sum())
        self._used = 0
