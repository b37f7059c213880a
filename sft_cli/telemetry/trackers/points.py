"""A line of metrics.jsonl as trackers take it: numbers, in groups. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sft_cli.telemetry.trackers.tracker import Point

_SYSTEM = ("gpu_", "peak_memory_gib", "slowest_rank")
"""How the names of what a machine does begin."""


def point_of(line: Mapping[str, Any]) -> Point | None:
    """None for a line that is no step's: the last one.

    Names are those of metrics.jsonl after their group; null is no number, and neither are words and lists.
    """
    if "step" not in line:
        return None
    numbers = {
        _name(name): float(value)
        for name, value in line.items()
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool)
    }
    return Point(line["step"], numbers)


def _name(name: str) -> str:
    if name.startswith("eval_"):
        return f"eval/{name.removeprefix('eval_')}"
    return f"{'system' if name.startswith(_SYSTEM) else 'train'}/{name}"
