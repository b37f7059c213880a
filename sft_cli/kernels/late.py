"""Kernels that Triton compiles while steps are taken, and not before.

It compiles anew for a number among a kernel's arguments that is 1, or divides by 16, for the first time. Such a step
takes longer than others, and a run that has more of them than a few has a kernel that was written for one shape.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import torch

_MICROSECONDS = 1e6


@dataclass(frozen=True)
class Late:
    """One compilation."""

    kernel: str
    seconds: float


class LateKernels:
    """What is compiled from `begin` on in this process."""

    def __init__(self) -> None:
        self._found: list[Late] = []

    def begin(self, device: torch.device) -> None:
        """Listens to Triton, which a CPU does not use, nor a run whose kernels are all torch's."""
        if device.type == "cpu" or importlib.util.find_spec("triton") is None:
            return
        from triton import knobs

        knobs.compilation.listener = self._note

    def take(self) -> list[Late]:
        """Those since the last call, in turn."""
        found, self._found = self._found, []
        return found

    def _note(self, *, src: Any, times: Any, cache_hit: bool, **unused: Any) -> None:
        if not cache_hit:
            self._found.append(Late(str(src.name), times.total / _MICROSECONDS))

    def told(self) -> str | None:
        """The same in words; None for none."""
        found = self.take()
        return ", ".join(f"{one.kernel} ({one.seconds:.1f} s)" for one in found) or None
