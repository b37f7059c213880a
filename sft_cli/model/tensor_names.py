"""Where each parameter is in a checkpoint: under its own name, another prefix, or in parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sft_cli.errors import ModelError
from sft_cli.model.families.family import Family
from sft_cli.model.safetensors_folder import DTYPES, SafetensorsFolder


@dataclass(frozen=True)
class Location:
    """One parameter's tensors in a checkpoint."""

    whole: str
    parts: tuple[str, ...] = ()
    """Where not empty, the parameter is in parts: for each index of its first dimension (`{}`) these tensors, one
    below the other."""

    def names(self, shape: torch.Size) -> list[str]:
        """Every tensor of a parameter of this shape."""
        if not self.parts:
            return [self.whole]
        return [part.format(index) for index in range(shape[0]) for part in self.parts]

    def part_shape(self, shape: torch.Size) -> torch.Size:
        """Of each of them."""
        return shape if not self.parts else torch.Size((shape[1] // len(self.parts), *shape[2:]))

    def split(self, tensor: Tensor) -> list[Tensor]:
        """A whole parameter as these tensors, in the order of `names`: views of it."""
        return list(tensor.view(-1, *self.part_shape(tensor.shape)).unbind()) if self.parts else [tensor]

    def require(self, source: SafetensorsFolder, shape: torch.Size) -> None:
        """ModelError where the source lacks a tensor of such a parameter, or its shape or dtype does not fit."""
        expected = self.part_shape(shape)
        for name in self.names(shape):
            if name not in source:
                raise ModelError(
                    f"the weights have no tensor {name}",
                    where=str(source.path),
                    fix="Use a folder whose safetensors belong to its config.json, or set model.weights: random.",
                )
            if source.shape(name) != tuple(expected):
                raise ModelError(
                    f"tensor {name} has shape {source.shape(name)}, config.json says {tuple(expected)}",
                    where=str(source.path),
                    fix="Use a folder whose safetensors belong to its config.json.",
                )
            if source.dtype(name) not in DTYPES:
                raise ModelError(
                    f"tensor {name} is stored as {source.dtype(name)}, which can't be trained",
                    where=str(source.path),
                    fix=f"Use the checkpoint that it was made from, in one of {', '.join(DTYPES)}.",
                )

    def read_into(self, target: Tensor, source: SafetensorsFolder, first_row: int) -> None:
        """Fills `target` with as many rows of the parameter as it has, from `first_row` on; only they are read."""
        if not self.parts:
            source.read_into(target, self.whole, first_row)
            return
        for index, row in enumerate(target, start=first_row):
            for part, piece in zip(self.parts, row.chunk(len(self.parts)), strict=True):
                source.read_into(piece, part.format(index))


class TensorNames:
    """Args:
    family: of the model.
    source: the checkpoint whose names count; None for those that `save_pretrained` writes.
    """

    def __init__(self, family: Family, source: SafetensorsFolder | None) -> None:
        self._family = family
        self._source = source
        candidates = (("model.", "lm_head."), *family.prefixes)
        present = [
            prefixes for prefixes in candidates if source is not None and f"{prefixes[0]}embed_tokens.weight" in source
        ]
        self._model, self._head = present[0] if present else candidates[0]

    @property
    def head(self) -> str:
        """The output projection."""
        return f"{self._head}weight"

    def locate(self, parameter: str) -> Location:
        """Where a parameter is, given transformers' name for it."""
        whole = parameter
        for ours, theirs in (("model.", self._model), ("lm_head.", self._head)):
            if parameter.startswith(ours):
                whole = theirs + parameter.removeprefix(ours)
        for stack in self._family.stacks:
            if parameter.endswith(f".{stack.parameter}"):
                in_parts = whole not in self._source if self._source is not None else self._family.writes_stacks
                prefix = whole.removesuffix(stack.parameter)
                return Location(whole, tuple(prefix + part for part in stack.parts) if in_parts else ())
        return Location(whole)
