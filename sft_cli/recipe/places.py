"""Where each key of a recipe was written, for errors that name the line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sft_cli.recipe.yaml_lines import KeyPath


@dataclass(frozen=True)
class Place:
    """A line of a file, or a --set.

    Args:
        source: `recipe.yaml`, or `--set batching.tokens=512`.
        line: from 1; None for a --set.
        rank: sorts errors: the recipe is 0, the ones it extends 1 and up, each --set after them.
    """

    source: str
    line: int | None
    rank: int


@dataclass(frozen=True)
class Places:
    """The place of every key that was written.

    Args:
        name: the recipe as the user calls it; the place of keys that nobody wrote.
        written: key path -> its place.
    """

    name: str
    written: Mapping[KeyPath, Place]

    def of(self, key: str) -> str:
        """`recipe.yaml:12: batching.tokens`; for a key left to its default, the nearest section that was written."""
        path = split(key)
        found = self._nearest(path)
        if found is None:
            return f"{self.name}: {key}"
        at, place = found
        if place.line is not None:
            return f"{place.source}:{place.line}: {key}"
        return place.source if at == path else f"{place.source}: {key}"

    def order(self, key: str) -> tuple[int, int]:
        """Sorts keys by where they stand."""
        found = self._nearest(split(key))
        return (found[1].rank, found[1].line or 0) if found else (0, 0)

    def _nearest(self, path: KeyPath) -> tuple[KeyPath, Place] | None:
        for length in range(len(path), 0, -1):
            place = self.written.get(path[:length])
            if place is not None:
                return path[:length], place
        # `--set lora.r=8` writes no line for `lora` itself.
        return next(((at, place) for at, place in self.written.items() if at[: len(path)] == path), None)


def split(key: str) -> KeyPath:
    """`data.train.0.path` -> ("data", "train", 0, "path")."""
    return tuple(int(part) if part.isdecimal() else part for part in key.split("."))


def join(path: KeyPath) -> str:
    """The inverse of `split`."""
    return ".".join(map(str, path))
