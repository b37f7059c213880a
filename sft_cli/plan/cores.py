"""How many CPU cores there are to use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """CPU cores that this process may run on: fewer than the machine's in a container or a Slurm job."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
