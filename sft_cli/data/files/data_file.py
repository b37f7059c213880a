"""What rows are read from."""

from __future__ import annotations

from typing import Any, Literal, Protocol


class FileStatus(Protocol):
    @property
    def st_size(self) -> int: ...


class DataFile(Protocol):
    """As much of a `Path` as reading rows takes; a file behind an address has it, too. As text it is its place."""

    @property
    def name(self) -> str: ...
    @property
    def suffix(self) -> str: ...
    def stat(self) -> FileStatus: ...
    def open(self, mode: Literal["rb"], buffering: Literal[0]) -> Any:
        """Its bytes, to be read and sought in, as a context manager; without a buffer where that is a choice."""
