"""A folder of safetensors files as one table of tensors, read by rows."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sft_cli.errors import ModelError

INDEX = "model.safetensors.index.json"
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Of weights that can be trained, by the names that safetensors gives them."""


class SafetensorsFolder:
    """Args:
        path: the model folder: one `model.safetensors`, or several with an index.

    Raises:
        ModelError: no safetensors in it, a file or tensor of the index missing, or a file damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file_of = _files_by_tensor(path)
        self._opened: dict[str, safe_open] = {}
        self._require_tensors_in_their_files()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def names(self) -> list[str]:
        return list(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file(name).get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """The name that safetensors gives it: `BF16`, `F32`."""
        return str(self._file(name).get_slice(name).get_dtype())

    def rows(self, name: str, rows: slice) -> Tensor:
        """Rows `rows` of a tensor in its own dtype; only they are read."""
        file = self._file(name)
        return file.get_tensor(name) if rows == slice(None) else file.get_slice(name)[rows]

    def _require_tensors_in_their_files(self) -> None:
        """What the index says and the files lack would else show itself where the tensor is read: after training."""
        held = {file: set(_open(self.path / file).keys()) for file in set(self._file_of.values())}
        for name, file in self._file_of.items():
            if name not in held[file]:
                raise ModelError(
                    f"{INDEX} names a tensor {name} in {file}, which has none of that name",
                    where=str(self.path),
                    fix="Download the model again; the copy is not complete.",
                )

    def _file(self, name: str) -> safe_open:
        """The file of a tensor, opened once: a header names thousands of experts, and each opening parses it."""
        file_name = self._file_of[name]
        if file_name not in self._opened:
            self._opened[file_name] = _open(self.path / file_name)
        return self._opened[file_name]


def _files_by_tensor(path: Path) -> dict[str, str]:
    index = path / INDEX
    if index.is_file():
        file_of: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        missing = sorted({name for name in file_of.values() if not (path / name).is_file()})
        if missing:
            raise ModelError(
                f"{INDEX} names {missing[0]}, which is not there",
                where=str(path),
                fix="Download the model again; the copy is not complete.",
            )
        return file_of
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelError(
            "no safetensors weights in the model folder",
            where=str(path),
            fix="Convert the weights to safetensors, or set model.weights: random.",
        )
    file_of = {}
    for file in files:
        with _open(file) as opened:
            file_of |= dict.fromkeys(opened.keys(), file.name)
    return file_of


def _open(file: Path) -> safe_open:
    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise ModelError(f"not a safetensors file: {error}", where=str(file), fix="Download the file again.") from error
