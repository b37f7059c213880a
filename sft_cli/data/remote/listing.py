"""The files that an address stands for, each with what tells its versions apart."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sft_cli.data.cache import disk_errors
from sft_cli.data.files.find import SUFFIXES, is_supported, require_supported
from sft_cli.data.remote.filesystem import answered, open_filesystem
from sft_cli.errors import DataError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_VERSION_KEYS = (
    "ETag", "etag", "checksum", "md5Hash", "content_md5", "generation", "blob_id", "lfs", "last_modified",
    "LastModified", "updated", "mtime", "created", "size",
)  # fmt: skip
"""Whatever of these a file system tells. Never an access time, which reading changes."""


@dataclass(frozen=True)
class RemoteFile:
    """One file behind an address."""

    address: str
    version: str
    """Changes when the content does, as far as the other side tells."""
    size: int | None

    @property
    def name(self) -> str:
        """Without folders; its ending says how it is read."""
        # An address of the web may carry a query; in a bucket a question mark is part of the name.
        is_web = self.address.lower().startswith(("http://", "https://"))
        return PurePosixPath(urlsplit(self.address).path if is_web else self.address).name


@dataclass(frozen=True)
class Listing:
    """All files of one address, in order."""

    files: tuple[RemoteFile, ...]

    @cached_property
    def digest(self) -> str:
        """40 hexadecimal digits that stand for the files and their versions."""
        facts = json.dumps([[file.address, file.version] for file in self.files])
        return hashlib.sha256(facts.encode()).hexdigest()[:40]

    @property
    def summary(self) -> str:
        """`3 files, 1,250.0 MiB`."""
        files = f"{len(self.files):,} file{'s' if len(self.files) > 1 else ''}"
        sizes = [file.size for file in self.files]
        return files if None in sizes else f"{files}, {sum(filter(None, sizes)) / 2**20:,.1f} MiB"


def ask_for_listing(address: str) -> Listing:
    """List the files of an address: a file, a folder with its subfolders, or a glob.

    Raises:
        DataError: nothing is there, access is refused, there is no answer, or no package for the protocol.
    """
    filesystem, path = open_filesystem(address)
    found = answered(address, lambda: _find(filesystem, path, address))
    files = [RemoteFile(filesystem.unstrip_protocol(name), _version(info), info.get("size")) for name, info in found]
    return Listing(tuple(sorted(files, key=lambda file: file.address)))


def note_listing(cache_dir: Path, address: str, listing: Listing) -> None:
    """Keep what an address stood for, for processes that read the same run's plan.

    Raises:
        CheckpointError: the cache can't be written.
    """
    note = _note(cache_dir, address)
    with disk_errors(cache_dir):
        note.parent.mkdir(parents=True, exist_ok=True)
        unfinished = note.with_name(f".{os.getpid()}.{note.name}")
        unfinished.write_text(json.dumps([asdict(file) for file in listing.files]), encoding="utf-8")
        unfinished.replace(note)


def noted_listing(cache_dir: Path, address: str) -> Listing | None:
    """What an address stood for when it was last asked for; None where it never was."""
    note = _note(cache_dir, address)
    if not note.is_file():
        return None
    return Listing(tuple(RemoteFile(**file) for file in json.loads(note.read_text(encoding="utf-8"))))


def pinned_listing(cache_dir: Path, address: str, digest: str | None) -> Listing:
    """The files that a plan means; asked for again where the note is missing or of another day.

    Args:
        digest: of the plan; None takes the files that are there now.

    Raises:
        DataError: as `ask_for_listing`, or the files have changed since the plan was made.
    """
    noted = noted_listing(cache_dir, address) if digest is not None else None
    listing = noted if noted is not None and noted.digest == digest else ask_for_listing(address)
    if digest not in (None, listing.digest):
        raise DataError("the files have changed since the plan was made", where=address, fix="Start it again.")
    return listing


def _find(filesystem: AbstractFileSystem, path: str, address: str) -> list[tuple[str, dict[str, Any]]]:
    is_glob = any(character in path for character in "*?[") and not address.lower().startswith(("http:", "https:"))
    if not is_glob:
        info = filesystem.info(path)
        if info["type"] != "directory":
            require_supported(RemoteFile(address, "", None).name, address)
            return [(path, info)]
    listed = filesystem.glob(path, detail=True) if is_glob else filesystem.find(path, detail=True)
    found = [(name, info) for name, info in listed.items() if info["type"] == "file"]
    readable = [(name, info) for name, info in found if is_supported(name) and not _hidden(name, path)]
    if not readable:
        what = "no file matches the pattern" if is_glob else "the folder holds no data file"
        raise DataError(what, where=address, fix=f"Supported: {', '.join(SUFFIXES)}.")
    return readable


def _hidden(name: str, folder: str) -> bool:
    return any(part.startswith(".") for part in name.removeprefix(folder).split("/"))


def _version(info: dict[str, Any]) -> str:
    return json.dumps({key: str(info[key]) for key in _VERSION_KEYS if info.get(key) is not None})


def _note(cache_dir: Path, address: str) -> Path:
    return cache_dir / "addresses" / f"{hashlib.sha256(address.encode()).hexdigest()[:32]}.json"
