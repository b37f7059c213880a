"""torch's profiler over some steps, and the trace that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule


@contextmanager
def tracing(
    device: torch.device, trace: Path | None, *, wait: int = 0, warm_up: int, active: int, memory: bool = False
) -> Iterator[Callable[[], None]]:
    """Gives a function to call at the end of each step.

    Args:
        trace: where the first rank's goes; None: this rank only runs along.
        wait, warm_up, active: steps before it is on, with it on and thrown away, and kept.
        memory: record allocations, too.
    """
    if trace is None:
        yield lambda: None
        return
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])],
        schedule=schedule(wait=wait, warmup=warm_up, active=active, repeat=1),
        on_trace_ready=lambda finished: finished.export_chrome_trace(str(trace)),
        profile_memory=memory,
    ) as running:
        yield running.step
