"""Bounds on what a chat template may take: a template is a program, and one from a hub may be anyone's.

The sandbox that it runs in keeps it from files and from Python; it does not keep it from looping for hours or from
writing a text larger than the memory.
"""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from jinja2 import TemplateRuntimeError

SECONDS = 5.0
"""For one chat; a long one takes a few milliseconds."""
MEMORY_BYTES = 4 * 2**30
"""On top of what the process has."""
CHARACTERS = 1_000_000
"""Of a template's own, beside ten times those of the chat (which it may escape); a long template has thousands."""

_STATM = Path("/proc/self/statm")


@contextmanager
def bounded_time() -> Iterator[None]:
    """Ends what runs inside after `SECONDS`. In the main thread only, where Python handles signals.

    Raises:
        TemplateRuntimeError: it took too long.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Lets what runs inside meet a MemoryError when it asks for more than `MEMORY_BYTES`. On Linux only.

    Around many chats: to find out what the process has takes longer than to render one.
    """
    if not _STATM.exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(_STATM.read_bytes().split()[0])
    bounds = [pages * resource.getpagesize() + MEMORY_BYTES, soft, hard]
    lowest = min(bound for bound in bounds if bound != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _stop(number: int, frame: FrameType | None) -> None:
    raise TemplateRuntimeError(f"it takes more than {SECONDS:g} seconds")
