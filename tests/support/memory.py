"""How much memory this process has: what Linux says of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/status")


@dataclass
class Rise:
    """Bytes that came in a block; filled in at its end."""

    most: int = 0
    """Resident memory at its worst moment, over that at the start: own pages and those of mapped files alike."""
    anonymous: int = 0
    """Of the process's own pages, at the end."""
    of_files: int = 0
    """Of mapped files' pages, at the end."""


@contextmanager
def most_memory_since() -> Iterator[Rise]:
    """Only where nothing before it has taken and given back memory, which a process would use again unseen."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _read()
    rise = Rise()
    yield rise
    after = _read()
    rise.most = after["VmHWM"] - before["VmRSS"]
    rise.anonymous = after["RssAnon"] - before["RssAnon"]
    rise.of_files = after["RssFile"] - before["RssFile"]


def _read() -> dict[str, int]:
    found = re.findall(r"^(VmHWM|VmRSS|RssAnon|RssFile):\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    return {name: int(kib) * 1024 for name, kib in found}
