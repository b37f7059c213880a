"""A run does not end because nobody watches any more."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def detachable(stream: TextIO) -> TextIO:
    """The same terminal or pipe, but when it goes away (`| head`, a closed window), what is written goes nowhere.

    Args:
        stream: has a file descriptor, stays open as long as the result, and is not written to meanwhile.
    """
    stream.flush()
    raw = _DetachableFile(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, errors="replace", line_buffering=True)


class _DetachableFile(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            # In place of the descriptor: whoever else holds it, or closes it, then fails no more either.
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            return memoryview(data).nbytes
