"""What the driver says of a GPU while a run is on: how busy, how hot, how much power."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sft_cli.plan.nvml import Reading, open_device


@dataclass(frozen=True)
class GpuReading:
    utilization: float
    """Share of the driver's last sampling period (up to a second) in which some kernel ran, 0 to 1. Not how well it
    used the GPU: that is the MFU."""
    temperature_c: int
    power_w: float


@contextmanager
def gpu_sampler(uuid: str | None) -> Iterator[Callable[[], GpuReading | None]]:
    """A function that reads the GPU now; it gives None for a CPU, and where the driver doesn't say.

    Args:
        uuid: `GPU-...`; None for a CPU.
    """
    if uuid is None:
        yield lambda: None
        return
    with open_device(uuid) as read:
        yield lambda: _reading(read())


def _reading(raw: Reading | None) -> GpuReading | None:
    if raw is None:
        return None
    return GpuReading(raw.utilization_percent / 100, raw.temperature_c, raw.power_milliwatt / 1000)
