"""How much of the host's memory a copy of a rank's tensors may take."""

from __future__ import annotations

import sys
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """What the system would give without swapping, or this container's limit leaves; where neither is told (another
    system than Linux), more than any model."""
    return min(_of_the_system(meminfo), _of_the_container(cgroup))


def _of_the_system(meminfo: Path) -> int:
    if not meminfo.exists():
        return sys.maxsize
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def _of_the_container(cgroup: Path) -> int:
    limit, current, stat = cgroup / "memory.max", cgroup / "memory.current", cgroup / "memory.stat"
    if not (limit.exists() and current.exists() and stat.exists()) or limit.read_text().strip() == "max":
        return sys.maxsize
    cached = dict(line.split() for line in stat.read_text().splitlines())
    # Pages of files count as used, and go when memory is wanted.
    used = int(current.read_text()) - int(cached["inactive_file"])
    return int(limit.read_text()) - used
