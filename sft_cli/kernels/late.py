"""Kernels that Triton compiles while steps are taken, and not before.

It compiles anew for a number among a kernel's arguments that is 1, or divides by 16, for the first time. Such a step
takes longer than others, and a run that has more of them than a few has a kernel that was written for one shape.
"""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch

_MICROSECONDS = 1e6


@dataclass(frozen=True)
class Late:
    """A kernel; a tuned one is compiled in many variants."""

    kernel: str
    variants: int
    seconds: float
    """Of all of them."""


class LateKernels:
    """What is compiled from `begin` on in this process."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        """Of each variant, by kernel."""

    def begin(self, device: torch.device) -> None:
        """Listens to Triton, which a CPU does not use, nor a run whose kernels are all torch's."""
        if device.type == "cpu" or importlib.util.find_spec("triton") is None:
            return
        from triton import knobs

        knobs.compilation.listener = self._note

    def take(self) -> list[Late]:
        """Those since the last call, in turn."""
        found = [Late(kernel, len(seconds), sum(seconds)) for kernel, seconds in self._seconds.items()]
        self._seconds.clear()
        return found

    def told(self) -> str | None:
        """The same in words; None for none."""
        return ", ".join(f"{one.kernel} ({one.seconds:.1f} s)" for one in self.take()) or None

    def _note(self, *, src: Any, times: Any, cache_hit: bool, **unused: Any) -> None:
        if not cache_hit:
            self._seconds[str(src.name)].append(times.total / _MICROSECONDS)
