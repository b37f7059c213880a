"""Sharded safetensors files, written one tensor at a time: where each goes is known before the first byte is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path

from sft_cli.plan.local_model import SAFETENSORS, SAFETENSORS_INDEX
from sft_cli.plan.safetensors_header import LENGTH_BYTES, StoredTensor

SHARD_BYTES = 4 * 2**30
"""About how large one file becomes; a tensor that is larger has one of its own."""

_ALIGNMENT = 8


@dataclass(frozen=True)
class Entry:
    """A tensor that will be written."""

    name: str
    dtype: str
    """As safetensors names it."""
    shape: tuple[int, ...]
    size_bytes: int

    @classmethod
    def like(cls, name: str, stored: StoredTensor) -> Entry:
        return cls(name, stored.dtype, stored.shape, stored.size_bytes)


class SafetensorsWriter:
    """Call `write` for every entry in order, then `close`; what is closed is on the disk.

    Args:
        folder: exists.
        entries: all that will be written.
    """

    def __init__(self, folder: Path, entries: Sequence[Entry]) -> None:
        self._folder = folder
        self._shards = _in_shards(entries)
        self._number = -1
        """Of the shard that is being written."""
        self._file: FileIO | None = None
        self._places: dict[str, tuple[int, int]] = {}
        """Of its tensors: first byte in the file, and how many."""

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        """The next tensor's bytes."""
        if name not in self._places:
            self._end_shard()
            self._begin_shard()
        position, size = self._places.pop(name)
        assert self._file is not None
        written = 0
        for piece in pieces:
            view = memoryview(piece)
            while view:
                count = os.pwrite(self._file.fileno(), view, position + written)
                view, written = view[count:], written + count
        assert written == size, f"{name} has {written} bytes, {size} were announced"

    def close(self) -> None:
        """Ends the last file, and writes the index where there are several."""
        self._end_shard()
        assert self._number == len(self._shards) - 1, "tensors that were announced were not written"
        if len(self._shards) > 1:
            weight_map = {entry.name: self._name(n) for n, shard in enumerate(self._shards) for entry in shard}
            total = sum(entry.size_bytes for shard in self._shards for entry in shard)
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            (self._folder / SAFETENSORS_INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def _begin_shard(self) -> None:
        self._number += 1
        header, self._places = _header(self._shards[self._number])
        self._file = FileIO(self._folder / self._name(self._number), "x")
        self._file.write(header)

    def _end_shard(self) -> None:
        if self._file is not None:
            assert not self._places, f"not written: {', '.join(self._places)}"
            os.fsync(self._file.fileno())  # file by file, while the next one's tensors are gathered anyhow
            self._file.close()

    def _name(self, number: int) -> str:
        """As transformers looks for it."""
        if len(self._shards) == 1:
            return SAFETENSORS
        return f"model-{number + 1:05d}-of-{len(self._shards):05d}.safetensors"


def _in_shards(entries: Sequence[Entry]) -> list[list[Entry]]:
    shards: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if shards[-1] and size + entry.size_bytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(entry)
        size += entry.size_bytes
    return shards


def _header(shard: Sequence[Entry]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The head of a file, and where in it each tensor goes: wider items first, so that every tensor is aligned."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offsets, end = {}, 0
    for entry in sorted(shard, key=lambda entry: -entry.size_bytes // max(1, prod(entry.shape))):
        offsets[entry.name] = end
        end += entry.size_bytes
        entries[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [offsets[entry.name], end],
        }
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    start = LENGTH_BYTES + len(text)
    places = {entry.name: (start + offsets[entry.name], entry.size_bytes) for entry in shard}
    return len(text).to_bytes(LENGTH_BYTES, "little") + text, places
