"""What safetensors files hold, read off their headers: names, dtypes, shapes, and where the bytes are.

The format (github.com/huggingface/safetensors): 8 bytes, little-endian, how long the header is; the header, JSON; then
the tensors' bytes without gaps. Read here and not by the library, so that a launcher without torch can look at weights,
and a rank can read the rows it holds without mapping the whole file into its memory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from sft_cli.errors import ModelError
from sft_cli.plan.local_model import SAFETENSORS_INDEX, missing_shards

LENGTH_BYTES = 8
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""Of dtypes whose sizes are checked; others (eight bits, less than a byte) are carried as they are."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file."""

    file: Path
    dtype: str
    """As safetensors names it: `BF16`, `F32`."""
    shape: tuple[int, ...]
    begin: int
    """Its first byte, counted from the start of the file."""
    end: int
    """The byte after its last one."""

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a model folder by name, in the order of its index, or of its only file.

    Raises:
        ModelError: no safetensors in it, a file or tensor of the index missing, or a file damaged or cut short.
    """
    index = folder / SAFETENSORS_INDEX
    if not index.is_file():
        return _of_all_files(folder)
    missing = missing_shards(folder)
    if missing:
        raise _incomplete(folder, f"{index.name} names {missing[0]}, which is not there")
    file_of: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    held = {file: read_header(folder / file) for file in set(file_of.values())}
    for name, file in file_of.items():
        if name not in held[file]:
            raise _incomplete(folder, f"{index.name} names a tensor {name} in {file}, which has none of that name")
    return {name: held[file][name] for name, file in file_of.items()}


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file.

    Raises:
        ModelError: it is no safetensors file, or not all of one.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if size < LENGTH_BYTES or length > size - LENGTH_BYTES:
            raise _damaged(path, f"its {size:,} bytes are fewer than its header needs")
        header = file.read(length)
    start = LENGTH_BYTES + length
    try:
        entries = json.loads(header)
        tensors = {name: _entry(path, start, entry) for name, entry in entries.items() if name != "__metadata__"}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _damaged(path, "its header can't be read") from error
    _require_sound(path, tensors, start, size)
    return tensors


def _entry(path: Path, start: int, entry: dict[str, Any]) -> StoredTensor:
    begin, end = entry["data_offsets"]
    return StoredTensor(path, str(entry["dtype"]), tuple(map(int, entry["shape"])), start + begin, start + end)


def _require_sound(path: Path, tensors: dict[str, StoredTensor], start: int, size: int) -> None:
    """ModelError where tensors overlap, leave gaps, or have other sizes than their shapes or the file."""
    position = start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        item_bytes = _ITEM_BYTES.get(tensor.dtype)
        if tensor.begin != position or tensor.end < tensor.begin:
            raise _damaged(path, f"its header puts tensor {name} where it can't be")
        if item_bytes is not None and tensor.size_bytes != prod(tensor.shape) * item_bytes:
            raise _damaged(path, f"tensor {name} has {tensor.size_bytes:,} bytes, another number than its shape needs")
        position = tensor.end
    if position != size:
        raise _damaged(path, f"it has {size:,} bytes, and its header says {position:,}")


def _of_all_files(folder: Path) -> dict[str, StoredTensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(
            "no safetensors weights in the model folder",
            where=str(folder),
            fix="Convert the weights to safetensors, or set model.weights: random.",
        )
    return {name: tensor for file in files for name, tensor in read_header(file).items()}


def _incomplete(folder: Path, what: str) -> ModelError:
    return ModelError(what, where=str(folder), fix="Download the model again; the copy is not complete.")


def _damaged(path: Path, what: str) -> ModelError:
    return ModelError(f"not a whole safetensors file: {what}", where=str(path), fix="Download the file again.")
