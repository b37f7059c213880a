"""The model's tensors in a checkpoint, each whole, one at a time, without ranks and without the optimizer's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from sft_cli.checkpoint.refusals import first_line, reasons
from sft_cli.errors import CheckpointError

_PREFIX = "model."
"""Of the model's tensors in what `CheckpointSaver` writes."""


class SavedModel:
    """Args:
        path: a complete checkpoint.

    Raises:
        CheckpointError: its table of contents can't be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = _Reader(path)
        try:
            contents = self._reader.read_metadata().state_dict_metadata
        except Exception as error:  # a pickle: there is no end to what a damaged one raises
            raise self._damaged(error) from error
        self._tensors = {
            name.removeprefix(_PREFIX): stored
            for name, stored in contents.items()
            if name.startswith(_PREFIX) and isinstance(stored, TensorStorageMetadata)
        }

    def require(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """CheckpointError where a parameter is missing, or has another shape."""
        for name, shape in shapes.items():
            found = tuple(self._tensors[name].size) if name in self._tensors else None
            if found != shape:
                has = "no such tensor" if found is None else f"one of shape {found}"
                raise CheckpointError(
                    f"the model has a parameter {name} of shape {shape}, and the checkpoint has {has}",
                    where=str(self._path),
                    fix="It is another run's: a checkpoint belongs to the plan.json that it was trained with.",
                )

    def read(self, name: str) -> Tensor:
        """A parameter in the dtype that it was trained in, on the CPU.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        stored = self._tensors[name]
        state = {_PREFIX + name: torch.empty(stored.size, dtype=stored.properties.dtype)}
        try:
            dcp.load(state, storage_reader=self._reader, no_dist=True)
        except CheckpointException as error:
            raise self._damaged(reasons(error)[0]) from error
        return state[_PREFIX + name]

    def _damaged(self, reason: BaseException) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint is damaged or not complete: {first_line(reason)}",
            where=str(self._path),
            fix="Take an older one; the run folder keeps the newest `checkpoint.keep`.",
        )


class _Reader(dcp.FileSystemReader):
    """Reads the table of contents once: torch would for each tensor."""

    _contents: Metadata | None = None

    def read_metadata(self, *arguments: Any, **options: Any) -> Metadata:
        if self._contents is None:
            self._contents = super().read_metadata(*arguments, **options)
        return self._contents
