"""Copies of remote files in the cache, the next one fetched while rows of the last are used."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path

from sft_cli.data.cache import disk_errors, locked
from sft_cli.data.files import read_file
from sft_cli.data.raw import RawRow
from sft_cli.data.remote.filesystem import open_filesystem, unreadable
from sft_cli.data.remote.listing import Listing, RemoteFile
from sft_cli.errors import DataError

_CHUNK_BYTES = 8 * 2**20
_SECONDS_TO_STOP = 2.0
"""For a fetch that nobody needs any more, to see that and to remove what it has; a chunk may take longer."""


def read_copies(listing: Listing, cache_dir: Path) -> Generator[RawRow]:
    """The rows of all files, in order; their places are addresses.

    Raises:
        DataError: a file can't be fetched, or not be read.
        CheckpointError: the cache can't be written.
    """
    stop = threading.Event()
    files = listing.files
    upcoming = _fetched(files[0], cache_dir, stop)
    try:
        for index, file in enumerate(files):
            copy = upcoming.result()
            if index + 1 < len(files):
                upcoming = _fetched(files[index + 1], cache_dir, stop)
            for row in _read(file, copy):
                yield replace(row, share_read=(index + row.share_read) / len(files))
    finally:
        stop.set()
        wait([upcoming], timeout=_SECONDS_TO_STOP)


def copy_of(file: RemoteFile, cache_dir: Path, stop: threading.Event) -> Path:
    """The local copy of a file, fetched where there is none of this version. It is whole, or not there.

    Args:
        stop: when it is set, fetching ends at the next chunk.

    Raises:
        DataError: the file can't be fetched.
        CheckpointError: the cache can't be written.
    """
    key = hashlib.sha256(f"{file.address}\n{file.version}".encode()).hexdigest()[:32]
    copy = cache_dir / "files" / key / file.name
    if copy.is_file():
        return copy
    # Of several processes one fetches and the others wait; what one that died has left is written over.
    with locked(copy.with_name(".lock")):
        if not copy.is_file():
            _fetch(file, copy, cache_dir, stop)
    return copy


def _fetch(file: RemoteFile, copy: Path, cache_dir: Path, stop: threading.Event) -> None:
    unfinished = copy.with_name(".unfinished")
    with disk_errors(cache_dir):
        try:
            with unfinished.open("wb") as out:
                for chunk in _chunks(file):
                    if stop.is_set():
                        raise DataError("fetching was stopped", where=file.address)
                    out.write(chunk)
            unfinished.replace(copy)
        finally:
            unfinished.unlink(missing_ok=True)


def _chunks(file: RemoteFile) -> Iterator[bytes]:
    filesystem, path = open_filesystem(file.address)
    size = 0
    try:
        with filesystem.open(path, "rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                size += len(chunk)
                yield chunk
    except Exception as error:  # whatever the protocol's package has of its own
        raise unreadable(file.address, error) from error
    if file.size not in (None, size):
        raise DataError(
            f"{size:,} bytes came of {file.size:,}", where=file.address, fix="Start it again; check the connection."
        )


def _fetched(file: RemoteFile, cache_dir: Path, stop: threading.Event) -> Future[Path]:
    """A copy on its way, by a thread that nobody has to wait for."""
    copy: Future[Path] = Future()

    def fetch() -> None:
        try:
            copy.set_result(copy_of(file, cache_dir, stop))
        except BaseException as error:  # carried over to the thread that waits, which raises it
            copy.set_exception(error)

    threading.Thread(target=fetch, name=f"fetching {file.name}", daemon=True).start()
    return copy


def _read(file: RemoteFile, copy: Path) -> Iterator[RawRow]:
    try:
        for row in read_file(copy):
            yield replace(row, place=file.address + row.place.removeprefix(str(copy)))
    except DataError as error:
        where = file.address + (error.where or "").removeprefix(str(copy))
        raise DataError(error.what, where=where, fix=f"{error.fix} The copy is {copy}.") from error
