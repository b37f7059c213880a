"""What a command line left behind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder of the project."""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str
