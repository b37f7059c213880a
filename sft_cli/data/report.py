"""What became of the rows of each source."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class SourceReport:
    """One source of the recipe after tokenisation."""

    path: str
    format: str
    """`messages`, `sharegpt`, `alpaca` or `prompt_completion`; several, joined with +, where its rows differ; empty
    where no row had a known shape."""
    rows_in: int
    rows_out: int
    dropped: dict[str, int]
    """Rows left out, by reason."""
    tokens: int
    supervised_tokens: int
    """Tokens that are predicted; a row's first never is."""
    changed: dict[str, int] = field(default_factory=dict)
    """Rows that the chat template renders without all they say, by reason. They are trained on as rendered."""

    def plus(self, more: SourceReport) -> SourceReport:
        """Of a later part of the same source, added to this one: numbers and counts by reason are summed."""
        formats = {*self.format.split("+"), *more.format.split("+")} - {""}
        summed = {
            part.name: _sum(getattr(self, part.name), getattr(more, part.name))
            for part in fields(self)
            if part.name not in ("path", "format")
        }
        return SourceReport(path=self.path, format="+".join(sorted(formats)), **summed)

    def to_json(self) -> dict[str, Any]:
        """As an object of JSON."""
        return asdict(self)


@dataclass(frozen=True)
class DataReport:
    """All sources, in the recipe's order."""

    train: tuple[SourceReport, ...]
    eval: tuple[SourceReport, ...]

    def write(self, path: Path) -> None:
        """As data.json."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return dict((Counter(one) + Counter(other)).most_common())
    return one + other
