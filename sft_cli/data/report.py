"""What became of the rows of each source."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
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

    def to_json(self) -> dict[str, Any]:
        """As an object of JSON."""
        return asdict(self)


@dataclass(frozen=True)
class DataReport:
    """All sources, in the recipe's order."""

    train: tuple[SourceReport, ...]
    eval: tuple[SourceReport, ...]
