"""Files behind an address read as they come, without a copy: of a stream, which may be larger than the disk."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Literal

from sft_cli.data.files import read_file
from sft_cli.data.raw import RawRow
from sft_cli.data.remote.filesystem import open_filesystem, unreadable
from sft_cli.data.remote.listing import Listing, RemoteFile
from sft_cli.errors import DataError


def read_through(listing: Listing) -> Generator[RawRow]:
    """The rows of all files, in order; their places are addresses. Nothing is kept.

    Raises:
        DataError: a file can't be read.
    """
    for index, file in enumerate(listing.files):
        try:
            for row in read_file(_Remote(file)):
                yield replace(row, share_read=(index + row.share_read) / len(listing.files))
        except DataError:
            raise
        except Exception as error:  # whatever the protocol's package has of its own
            raise unreadable(file.address, error) from error


@dataclass(frozen=True)
class _Size:
    st_size: int


@dataclass(frozen=True)
class _Remote:
    """A `DataFile`."""

    file: RemoteFile

    def __str__(self) -> str:
        return self.file.address

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    def stat(self) -> _Size:
        """Of the listing: a file of unknown size counts as read from the beginning."""
        return _Size(self.file.size or 0)

    def open(self, mode: Literal["rb"], buffering: Literal[0]) -> Any:
        filesystem, path = open_filesystem(self.file.address)
        return filesystem.open(path, mode)
