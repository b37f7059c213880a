"""A folder of safetensors files as one table of tensors, of which any rows can be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import FileIO
from math import prod
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from sft_cli.errors import ModelError
from sft_cli.plan.safetensors_header import StoredTensor, stored_tensors

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Of weights that can be trained, by the names that safetensors gives them."""

Read = TypeVar("Read", bytes, int)

PIECE_BYTES = 8 * 2**20
"""What is converted, or on its way to a GPU, at a time: the host memory that loading takes beside the parameters."""


class SafetensorsFolder:
    """Reads with read() and not through a mapping, whose pages would count as this process's memory once touched.

    Args:
        path: the model folder: one `model.safetensors`, or several with an index.

    Raises:
        ModelError: no safetensors in it, a file or tensor of the index missing, or a file damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_read = 0
        """So far, by this process."""
        self._tensors = stored_tensors(path)
        self._opened: dict[Path, FileIO] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def names(self) -> list[str]:
        return list(self._tensors)

    def stored(self, name: str) -> StoredTensor:
        return self._tensors[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def dtype(self, name: str) -> str:
        """The name that safetensors gives it: `BF16`, `F32`."""
        return self._tensors[name].dtype

    def read_into(self, target: Tensor, name: str, first_row: int = 0) -> None:
        """Fills `target` with as many rows of a tensor as it has, from `first_row` on; only they are read.

        Args:
            target: contiguous; of any dtype, on any device.
            name: of a tensor of one of `DTYPES`.
        """
        stored = self._tensors[name]
        dtype = DTYPES[stored.dtype]
        position = stored.begin + first_row * prod(stored.shape[1:]) * dtype.itemsize
        items = target.detach().view(-1)
        if items.dtype == dtype and items.device.type == "cpu":
            self._read(stored.file, position, items)
            return
        piece = torch.empty(PIECE_BYTES // dtype.itemsize, dtype=dtype, pin_memory=items.device.type == "cuda")
        for part in items.split(len(piece)):
            read = piece[: len(part)]
            self._read(stored.file, position, read)
            position += read.nbytes
            # To the device first: torch would convert on the host, and send what it has converted.
            part.copy_(read.to(items.device))

    def rows(self, name: str, rows: slice) -> Tensor:
        """Rows of a tensor of one of `DTYPES`, in its own dtype; only they are read."""
        shape = self.shape(name)
        first_row, stop, _ = rows.indices(shape[0]) if shape else (0, 1, 1)
        target = torch.empty((stop - first_row, *shape[1:]) if shape else (), dtype=DTYPES[self.dtype(name)])
        self.read_into(target, name, first_row)
        return target

    def pieces(self, name: str) -> Iterator[bytes]:
        """A tensor of any dtype as it is stored."""
        stored = self._tensors[name]
        position = stored.begin
        while position < stored.end:
            piece = os.pread(self._file(stored.file), min(PIECE_BYTES, stored.end - position), position)
            yield _not_empty(piece, stored.file)
            position += len(piece)

    def _read(self, path: Path, position: int, items: Tensor) -> None:
        """Fills a flat tensor on the host with the bytes of a file from `position` on."""
        view = memoryview(items.view(torch.uint8).numpy())
        self.bytes_read += len(view)
        while view:
            count = _not_empty(os.preadv(self._file(path), [view], position), path)
            view, position = view[count:], position + count

    def _file(self, path: Path) -> int:
        """Its descriptor, opened once: experts can be tens of thousands of tensors in a file."""
        if path not in self._opened:
            self._opened[path] = FileIO(path)
        return self._opened[path].fileno()


def _not_empty(read: Read, path: Path) -> Read:
    if not read:
        raise ModelError(
            "the file ends sooner than it did when it was opened", where=str(path), fix="Download it again."
        )
    return read
