"""Tokenised rows on disk: `cache_dir/<key>/`, built once under a lock, then memory-mapped by every process."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from sft_cli.data.chat import EncodedChat
from sft_cli.data.report import SourceReport
from sft_cli.data.rows import TokenizedRows
from sft_cli.errors import CheckpointError

FORMAT_VERSION = 4
"""Changes when the files of an entry, or what tokenisation makes of a row, change."""

_ARRAYS = {"token_ids": np.uint32, "supervised": np.uint8, "lengths": np.int64, "source_of_row": np.int32}
_REPORT = "report.json"

Built = tuple[TokenizedRows, tuple[SourceReport, ...]]


class RowWriter:
    """Appends rows to the arrays of an entry that is being built, so that memory stays small."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._items = dict.fromkeys(_ARRAYS, 0)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with disk_errors(self._folder.parent):
            for name in _ARRAYS:
                self._files[name] = self._stack.enter_context((self._folder / f"{name}.npy").open("wb"))
                self._write_header(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with disk_errors(self._folder.parent), self._stack:
            if kind is None:
                for name, file in self._files.items():
                    file.seek(0)
                    self._write_header(name)

    def append(self, chats: Sequence[EncodedChat], source: int) -> None:
        """Add rows of the source with this index."""
        if not chats:
            return
        with disk_errors(self._folder.parent):
            self._append("token_ids", np.concatenate([chat.token_ids for chat in chats]))
            self._append("supervised", np.concatenate([chat.supervised for chat in chats]))
            self._append("lengths", np.array([len(chat.token_ids) for chat in chats]))
            self._append("source_of_row", np.full(len(chats), source))

    def _append(self, name: str, values: np.ndarray[Any, Any]) -> None:
        self._files[name].write(values.astype(_ARRAYS[name], copy=False).tobytes())
        self._items[name] += len(values)

    def _write_header(self, name: str) -> None:
        """numpy leaves room in a header for the first axis to grow to any length, so it can be rewritten in place."""
        header = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(_ARRAYS[name])),
            "fortran_order": False,
            "shape": (self._items[name],),
        }
        np.lib.format.write_array_header_1_0(self._files[name], header)


def cache_key(facts: dict[str, Any]) -> str:
    """64 hexadecimal digits that stand for everything tokens depend on."""
    return hashlib.sha256(json.dumps([FORMAT_VERSION, facts], sort_keys=True).encode()).hexdigest()


def is_built(cache_dir: Path, key: str) -> bool:
    """Whether there is an entry; it may turn out to be damaged."""
    return (cache_dir / key / _REPORT).is_file()


def load_or_build(cache_dir: Path, key: str, build: Callable[[RowWriter], tuple[SourceReport, ...]]) -> Built:
    """Load an entry; where it is missing or damaged, build it. Of several processes one builds and the others wait.

    Args:
        cache_dir: made where it does not exist.
        key: from `cache_key`.
        build: writes all rows and returns the reports.

    Raises:
        CheckpointError: `cache_dir` can't be written.
        DataError, ModelError: from `build`; nothing is left behind.
    """
    entry = cache_dir / key
    found = _load(entry)
    if found is not None:
        return found
    with locked(cache_dir / f"{key}.lock"):
        found = _load(entry)
        if found is None:
            _build(entry, build)
            found = _load(entry)
    assert found is not None, "an entry just built can be loaded"
    return found


@contextmanager
def disk_errors(cache_dir: Path) -> Iterator[None]:
    """Raises CheckpointError where what is done inside can't be written into the cache."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"the cache of data can't be written: {error}",
            where=f"data.cache_dir: {cache_dir}",
            fix="Free space there, or set data.cache_dir to a folder that can be written.",
        ) from error


def _build(entry: Path, build: Callable[[RowWriter], tuple[SourceReport, ...]]) -> None:
    unfinished = entry.with_name(f"{entry.name}.unfinished")
    with disk_errors(entry.parent):
        _sweep(entry.parent)
        for leftover in (unfinished, entry):
            if leftover.exists():
                shutil.rmtree(leftover)
        unfinished.mkdir()
    try:
        with RowWriter(unfinished) as writer:
            reports = build(writer)
        text = json.dumps([report.to_json() for report in reports], indent=2)
        with disk_errors(entry.parent):
            (unfinished / _REPORT).write_text(text + "\n", encoding="utf-8")
            unfinished.rename(entry)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _sweep(cache_dir: Path) -> None:
    """Removes what processes left that were killed while they built an entry: nobody holds its lock any more."""
    for unfinished in cache_dir.glob("*.unfinished"):
        lock = unfinished.with_suffix(".lock")
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            continue  # somebody else's: it stays
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, lock):
                shutil.rmtree(unfinished, ignore_errors=True)
                lock.unlink(missing_ok=True)
        except BlockingIOError:
            continue  # it is being built
        finally:
            os.close(descriptor)


def _load(entry: Path) -> Built | None:
    """Map an entry into memory; None where a file is missing, cut, or does not fit the others."""
    try:
        arrays = {name: np.load(entry / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _ARRAYS}
        reports = tuple(SourceReport(**report) for report in json.loads((entry / _REPORT).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, EOFError):
        return None
    lengths = arrays["lengths"]
    tokens, rows = len(arrays["token_ids"]), len(lengths)
    sound = (
        all(array.ndim == 1 and array.dtype == _ARRAYS[name] for name, array in arrays.items())
        and len(arrays["supervised"]) == tokens == sum(report.tokens for report in reports)
        and len(arrays["source_of_row"]) == rows == sum(report.rows_out for report in reports)
        and bool((lengths > 0).all())
        and int(lengths.sum()) == tokens
    )
    if not sound:
        return None
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    source_of_row = np.array(arrays["source_of_row"])
    return TokenizedRows(arrays["token_ids"], arrays["supervised"], offsets, source_of_row), reports


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; the kernel lets go of it when the process dies, however it dies.

    Its file is removed at the end, so that an error leaves nothing behind.
    """
    while True:
        with disk_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _is_at(descriptor, path):
                continue  # whoever held it has removed the file: this lock is on a file that nobody else will find
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a fork may have the descriptor, too, and would keep the lock
            return
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
