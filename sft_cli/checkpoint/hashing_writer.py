"""torch's writer of checkpoint files, which also says what it wrote: no byte is read again for its checksum."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import xxhash
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem

from sft_cli.checkpoint.manifest import FileFacts


class HashingWriter(FileSystemWriter):
    """Args:
    path: the folder of the checkpoint, which exists.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._files = _HashingFileSystem()
        self.fs = self._files

    @property
    def written(self) -> dict[str, FileFacts]:
        """Every file that this process has written so far, by its name."""
        return {name: FileFacts(stream.size, stream.digest.hexdigest()) for name, stream in self._files.streams.items()}


class _HashingStream(io.RawIOBase):
    """Passes on what is written, in order, and hashes it on the way. torch's writers never seek."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = xxhash.xxh3_128()
        self.size = 0

    def write(self, data: Any) -> int:
        self._file.write(data)
        self.digest.update(data)
        count = memoryview(data).nbytes
        self.size += count
        return count

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        self._file.flush()  # whoever asks wants to sync it
        return self._file.fileno()


class _HashingFileSystem(FileSystem):
    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[str, _HashingStream] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        with Path(path).open(mode) as file:
            stream = _HashingStream(file)
            self.streams[Path(path).name] = stream
            yield stream

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.streams[Path(new_path).name] = self.streams.pop(Path(path).name)
