"""Bytes of a file as they were before it was compressed, read as a stream."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sft_cli.data.files.data_file import DataFile

COMPRESSIONS = (".gz", ".zst")


def uncompressed_name(file: DataFile) -> str:
    """The file's name in small letters, without the ending of its compression."""
    name = file.name.lower()
    for ending in COMPRESSIONS:
        name = name.removesuffix(ending)
    return name


@contextmanager
def open_stream(file: DataFile) -> Iterator[tuple[io.BufferedIOBase, Callable[[], float]]]:
    """Open a file; what it yields is the stream, and what tells how much of the file has been read, 0 to 1.

    Raises:
        OSError, EOFError, zlib.error: it can't be read; also while it is read.
    """
    size = max(file.stat().st_size, 1)
    with file.open("rb", 0) as raw, _decompressed(raw, file) as stream:
        yield stream, lambda: min(raw.tell() / size, 1.0)


def _decompressed(raw: Any, file: DataFile) -> io.BufferedIOBase:
    ending = file.suffix.lower()
    if ending == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if ending == ".zst":
        import pyarrow as pa

        # Python has had its own since 3.14; Arrow's is there whatever the version, and reads frame after frame too.
        return io.BufferedReader(pa.CompressedInputStream(raw, "zstd"))
    return io.BufferedReader(raw)
