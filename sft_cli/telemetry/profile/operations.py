"""Tables of operations: how often each ran and how long it took, per step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sft_cli.telemetry.profile.kinds import KINDS

MOST_SHOWN = 50
"""Operations of a table in profile.json."""


@dataclass(frozen=True)
class Row:
    """One name or kind. Both numbers are of one step, the mean of those profiled."""

    name: str
    calls: float
    seconds: float


@dataclass(frozen=True)
class Measured:
    """One call of anything that is counted."""

    name: str
    kind: str
    part: str
    slot: str | None
    seconds: float
    """Of its own: what it called is counted there."""


@dataclass(frozen=True)
class Table:
    """One side of a profile: the host's operations, or the GPU's kernels and copies."""

    calls: float
    seconds: float
    top: tuple[Row, ...]
    """By time, the largest first."""
    kinds: dict[str, Row]
    parts: dict[str, Row]
    slots: dict[str, Row]


def tabulate(measured: Iterable[Measured], steps: int) -> Table:
    """Sums by name, by kind, by part of the step and by kernel slot, over the number of steps."""
    names, kinds, parts, slots = _Sums(steps), _Sums(steps), _Sums(steps), _Sums(steps)
    for one in measured:
        names.add(one.name, one.seconds)
        kinds.add(one.kind, one.seconds)
        parts.add(one.part, one.seconds)
        if one.slot is not None:
            slots.add(one.slot, one.seconds)
    rows = sorted(names.rows(), key=lambda row: (-row.seconds, row.name))
    by_kind = {row.name: row for row in kinds.rows()}
    return Table(
        calls=sum(row.calls for row in rows),
        seconds=sum(row.seconds for row in rows),
        top=tuple(rows[:MOST_SHOWN]),
        kinds={kind: by_kind[kind] for kind in KINDS if kind in by_kind},
        parts={row.name: row for row in parts.rows()},
        slots={row.name: row for row in slots.rows()},
    )


class _Sums:
    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._sums: dict[str, list[float]] = {}

    def add(self, name: str, seconds: float) -> None:
        sums = self._sums.setdefault(name, [0, 0.0])
        sums[0] += 1
        sums[1] += seconds

    def rows(self) -> list[Row]:
        return [Row(name, calls / self._steps, seconds / self._steps) for name, (calls, seconds) in self._sums.items()]
