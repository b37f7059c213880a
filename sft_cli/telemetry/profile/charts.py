"""Drawings of the page: SVG without script, in colours that the style sheet names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from sft_cli.telemetry.profile.lanes import COLUMNS, Lane

_LEFT, _LANE, _GAP, _AXIS = 130, 26, 10, 24
_MEMORY_HEIGHT = 160
_TICKS = 6


def timeline_chart(lanes: Sequence[Lane], seconds: float) -> str:
    """Lanes above each other over one axis of time."""
    parts, top = [], 0
    for lane in lanes:
        parts.append(f'<text x="0" y="{top + _LANE / 2 + 4:.0f}">{escape(lane.title)}</text>')
        parts.append(f'<rect class="idle" x="{_LEFT}" y="{top}" width="{COLUMNS}" height="{_LANE}"/>')
        for what, path in _paths(lane, top):
            total = lane.seconds.get(what, 0.0)
            label = f"{what}: {total:.4f} s, {total / seconds:.0%} of the step"
            parts.append(f'<path class="{css(what)}" d="{path}"><title>{escape(label)}</title></path>')
        top += _LANE + _GAP
    return _svg([*parts, *_axis(top, seconds)], top + _AXIS, "What each thread and stream does over one step")


def stacked_bar(parts: Iterable[tuple[str, float]], total: float) -> str:
    """One bar of shares."""
    drawn, left = [], 0.0
    for what, seconds in parts:
        width = seconds / total * (COLUMNS + _LEFT)
        label = escape(f"{what}: {seconds:.4f} s, {seconds / total:.1%}")
        box = f'x="{left:.1f}" y="0" width="{width:.1f}" height="30"'
        drawn.append(f'<rect class="{css(what)}" {box}><title>{label}</title></rect>')
        left += width
    return _svg(drawn, 30, "Time by kind of work")


def memory_chart(points: Sequence[tuple[float, float]], seconds: float) -> str:
    """Allocated memory over the step: (column, GiB)."""
    low, high = min(0.0, *(gib for _, gib in points)), max(gib for _, gib in points)
    scale = _MEMORY_HEIGHT / max(high - low, 1e-9)
    steps = [f"{_LEFT + column},{_MEMORY_HEIGHT - (gib - low) * scale:.1f}" for column, gib in points]
    line = f'<polyline class="memory" points="{" ".join(steps)}"/>'
    labels = f'<text x="0" y="12">{high:.2f} GiB</text><text x="0" y="{_MEMORY_HEIGHT}">{low:.2f}</text>'
    return _svg([line, labels, *_axis(_MEMORY_HEIGHT + 6, seconds)], _MEMORY_HEIGHT + 6 + _AXIS, "Memory over one step")


def legend(names: Iterable[str]) -> str:
    return '<p class="legend">' + "".join(f'<span><i class="{css(n)}"></i>{escape(n)}</span>' for n in names) + "</p>"


def css(what: str) -> str:
    """The class of a kind or part: `k-delta-rule`."""
    return "k-" + what.lower().replace(" ", "-")


def _paths(lane: Lane, top: int) -> list[tuple[str, str]]:
    """One path for each colour."""
    strips: dict[str, list[str]] = {}
    at = 0
    for what, group in groupby(lane.columns):
        width = len(list(group))
        if what is not None:
            strips.setdefault(what, []).append(f"M{_LEFT + at} {top}h{width}v{_LANE}h-{width}z")
        at += width
    return [(what, "".join(paths)) for what, paths in strips.items()]


def _axis(top: int, seconds: float) -> list[str]:
    marks = [f'<line x1="{_LEFT}" y1="{top}" x2="{_LEFT + COLUMNS}" y2="{top}"/>']
    for tick in range(_TICKS + 1):
        x = _LEFT + COLUMNS * tick / _TICKS
        anchor = "start" if tick == 0 else "end" if tick == _TICKS else "middle"
        label = f"{seconds * tick / _TICKS:.3f} s"
        marks.append(f'<line x1="{x:.0f}" y1="{top}" x2="{x:.0f}" y2="{top + 5}"/>')
        marks.append(f'<text x="{x:.0f}" y="{top + 18}" text-anchor="{anchor}">{label}</text>')
    return marks


def _svg(parts: Iterable[str], height: int, label: str) -> str:
    box = f"0 0 {_LEFT + COLUMNS} {height}"
    return f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
