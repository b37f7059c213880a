"""Limits of time on a machine that may have other things to do."""

from __future__ import annotations

import os


def allowed(seconds: float) -> float:
    """What a command takes here that takes so long on a machine of its own: as many times that as there are processes
    to a core. Asked afterwards; the system's number is a mean of the last minute."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
