"""No process outlives the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def die_with_parent(parent_pid: int) -> None:
    """Asks the kernel to SIGKILL this process when its parent dies, however the parent dies.

    torchrun starts workers in sessions of their own, so no signal to the launcher's group reaches them. A child of
    this process does not inherit the request: pools call this in their initializer. Only Linux has it; elsewhere
    this only looks whether the parent is still there.

    Args:
        parent_pid: who the parent was when this process was started. If it has died since, this process exits.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    # The parent may have died before the request was in place; then nobody will ever send the signal.
    if os.getppid() != parent_pid:
        os._exit(1)
