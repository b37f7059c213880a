"""Two profiles side by side: what changed, by kind of work and by operation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sft_cli.telemetry.profile.text import ROWS, Grid, shortened

Document = dict[str, Any]

_HEADINGS = ("", "calls before", "now", "seconds before", "now", "change")


def compare(before: Document, now: Document) -> Iterator[Grid]:
    """Tables of both, what changed most first.

    Args:
        before, now: as in profile.json; `before` with the `path` that it was read from.
    """
    yield Grid(
        f"compared with {before['path']}",
        ("", "before", "now", "change"),
        tuple(_figures(before, now)),
    )
    side = "gpu" if before["gpu"]["calls"] and now["gpu"]["calls"] else "cpu"
    for key, title in (("kinds", "by kind"), ("top", "by operation")):
        rows = sorted(_pairs(before[side].get(key, []), now[side].get(key, [])), key=lambda row: -abs(row[4] - row[3]))
        shown = tuple(_cells(*row) for row in rows[: ROWS if key == "top" else None])
        yield Grid(f"{side.upper()} {title}, per step", _HEADINGS, shown)


def _figures(before: Document, now: Document) -> Iterator[tuple[str, ...]]:
    for name, key, form in (
        ("step seconds", "step_seconds", ".4f"),
        ("real tokens a second", "tokens_per_second", ",.0f"),
        ("GPU busy", "gpu_busy", ".1%"),
        ("padding", "padding_share", ".1%"),
        ("recomputation", "recompute_share", ".1%"),
        ("MFU", "model_flops_utilization", ".1%"),
        ("peak memory GiB", "peak_memory_gib", ".2f"),
    ):
        old, new = before.get(key), now.get(key)
        if old is not None and new is not None:
            yield name, format(old, form), format(new, form), _change(old, new)
    for side in ("cpu", "gpu"):
        values = before[side]["calls"], now[side]["calls"]
        if any(values):
            yield f"{side.upper()} calls", *(f"{value:,.0f}" for value in values), _change(*values)


def _pairs(
    before: list[Document], now: list[Document]
) -> Iterator[tuple[str, float | None, float | None, float, float]]:
    """Name, calls before and now, seconds before and now; None for calls that the list lacks."""
    old, new = ({row["name"]: row for row in rows} for rows in (before, now))
    for name in {**old, **new}:
        first, second = old.get(name), new.get(name)
        calls = [None if row is None else row["calls"] for row in (first, second)]
        seconds = [0.0 if row is None else row["seconds"] for row in (first, second)]
        yield name, calls[0], calls[1], seconds[0], seconds[1]


def _cells(
    name: str, calls: float | None, calls_now: float | None, seconds: float, seconds_now: float
) -> tuple[str, ...]:
    counts = ("-" if count is None else f"{count:,.0f}" for count in (calls, calls_now))
    return shortened(name), *counts, f"{seconds:.4f}", f"{seconds_now:.4f}", f"{seconds_now - seconds:+.4f} s"


def _change(before: float, now: float) -> str:
    return f"{now / before - 1:+.1%}" if before else "-"
