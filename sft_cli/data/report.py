"""What became of the rows of each source."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class SourceReport:
    """One source of the recipe after tokenisation."""

    path: str
    format: str
    """`messages`, `sharegpt`; both where its files differ; empty where no row had a known shape."""
    rows_in: int
    rows_out: int
    dropped: dict[str, int]
    """Rows left out, by reason."""
    tokens: int
    supervised_tokens: int
    """Tokens that are predicted; a row's first never is."""

    def plus(self, more: SourceReport) -> SourceReport:
        """Of a later part of the same source, added to this one."""
        return SourceReport(
            path=self.path,
            format="+".join(sorted({*self.format.split("+"), *more.format.split("+")} - {""})),
            rows_in=self.rows_in + more.rows_in,
            rows_out=self.rows_out + more.rows_out,
            dropped=dict((Counter(self.dropped) + Counter(more.dropped)).most_common()),
            tokens=self.tokens + more.tokens,
            supervised_tokens=self.supervised_tokens + more.supervised_tokens,
        )

    def to_json(self) -> dict[str, Any]:
        """As an object of JSON."""
        return asdict(self)


@dataclass(frozen=True)
class DataReport:
    """All sources, in the recipe's order."""

    train: tuple[SourceReport, ...]
    eval: tuple[SourceReport, ...]
