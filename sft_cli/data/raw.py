"""A row as it was read, and how a row that can't be used is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RawRow:
    """One row of a source, before its shape is known."""

    place: str
    """`chat.jsonl:104`: file and line, or file and row, from 1."""
    value: Any
    """The row as Python objects: a dict, where all is well."""
    share_read: float
    """How much of the source has been read, 0 to 1."""
    problem: BadRow | None = None
    """Why there is no value: the line is not JSON, not UTF-8."""


class BadRow(Exception):
    """A row that can't be trained on. `data.bad_rows` decides whether it stops the run or is counted.

    Args:
        reason: a few words, the same for all rows with this problem; rows are counted under it.
        detail: what is special to this row.
        fix: what to do about it.
    """

    def __init__(self, reason: str, detail: str | None = None, fix: str | None = None) -> None:
        super().__init__(reason if detail is None else f"{reason}: {detail}")
        self.reason = reason
        self.fix = fix
