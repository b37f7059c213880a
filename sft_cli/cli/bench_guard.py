"""`sftune bench --against`: what has become slower than a saved bench, and which kind of work has grown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sft_cli.cli.bench_document import Document, Entry
from sft_cli.cli.bench_files import read_json, require_same
from sft_cli.errors import UsageError


@dataclass(frozen=True)
class Guard:
    path: Path
    saved: Document
    tolerance: float
    """A share of the saved tokens a second."""

    @classmethod
    def read(cls, path: Path, tolerance: float, names: Sequence[str]) -> Guard:
        """A saved bench to compare with.

        Args:
            names: of the rungs that are to run.

        Raises:
            UsageError: it isn't one, or has numbers of none of them.
        """
        saved = read_json(path, ("device", "rungs"), "--against")
        known = [entry["name"] for entry in saved["rungs"] if entry["tokens_per_second"] is not None]
        if not set(known) & set(names):
            raise UsageError(
                "no rung that is to run has numbers in it",
                where=f"--against {path}",
                fix=f"It has {', '.join(known) or 'none at all'}.",
            )
        return cls(path, saved, tolerance)

    def require_same(self, setting: Document) -> None:
        """Passes a bench of the same model and rows on the same machine."""
        place = f"--against {self.path}"
        require_same(setting, self.saved, place)
        before, now = self.saved.get("rows_hash"), setting["rows_hash"]
        if before != now and None not in (before, now):
            raise UsageError(
                "its rows were others: the files, the tokenizer or the template has changed, or data.max_length",
                where=place,
                fix="Bench the same again, or save anew.",
            )

    def falls(self, entries: Sequence[Entry]) -> list[str]:
        """A line for each rung that is slower than the saved one by more than the tolerance."""
        return falls(self.saved, entries, self.tolerance)

    def all_is_well(self) -> str:
        """What is said where there is none."""
        return f"no rung is slower than in {self.path} by more than {self.tolerance:.1%}"


def falls(saved: Document, entries: Sequence[Entry], tolerance: float) -> list[str]:
    """A line for each rung that is slower than the saved one by more than the tolerance.

    Args:
        tolerance: a share of the saved tokens a second.
    """
    # By name: of two in one bench (an anchor and the rung itself) the later one.
    before, now = (
        {entry["name"]: entry for entry in bench if entry["tokens_per_second"] is not None}
        for bench in (saved["rungs"], entries)
    )
    return [
        _line(before[name], entry, tolerance)
        for name, entry in now.items()
        if name in before and entry["tokens_per_second"] < before[name]["tokens_per_second"] * (1 - tolerance)
    ]


def _line(before: Entry, now: Entry, tolerance: float) -> str:
    old, new = before["tokens_per_second"], now["tokens_per_second"]
    line = f"{now['name']}: {new:,.0f} tokens a second, {1 - new / old:.1%} fewer than the {old:,.0f} before"
    line += f" ({tolerance:.1%} are tolerated)"
    grown = most_grown(before["kinds"], now["kinds"])
    if grown is None:
        return f"{line}; no kind of work of the profiled step has grown"
    was, is_now = before["kinds"].get(grown, 0.0), now["kinds"][grown]
    return f"{line}; most grown: {grown}, {was:.4f} s of a step then, {is_now:.4f} now"


def most_grown(before: Mapping[str, float], now: Mapping[str, float]) -> str | None:
    """The kind of work that takes more seconds of a step than before, the most more; None where none does."""
    growth = {kind: seconds - before.get(kind, 0.0) for kind, seconds in now.items()}
    kind = max(growth, key=lambda one: growth[one], default=None)
    return kind if kind is not None and growth[kind] > 0 else None
