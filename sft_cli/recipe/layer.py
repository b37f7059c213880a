"""What one file or one --set says, and how one is laid over another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sft_cli.recipe.keys import sections
from sft_cli.recipe.places import Place
from sft_cli.recipe.yaml_lines import KeyPath

SOURCE_LISTS: tuple[KeyPath, ...] = (("data", "train"), ("data", "eval"))


@dataclass(frozen=True)
class Layer:
    """Values as they were read, and the place of every key among them."""

    values: dict[str, Any]
    places: Mapping[KeyPath, Place] = field(default_factory=dict)


def normalised(layer: Layer) -> Layer:
    """The same in one spelling: a section left empty is `{}`, and data.train and data.eval are lists of mappings."""
    values, places = dict(layer.values), dict(layer.places)
    for section in sections():
        parent = lookup(values, section[:-1])
        if section and section not in SOURCE_LISTS and isinstance(parent, dict) and parent.get(section[-1], "") is None:
            values = replaced(values, section, {})
    for path in SOURCE_LISTS:
        sources = lookup(values, path)
        if isinstance(sources, dict):
            places = {
                (*path, 0, *at[2:]) if at[:2] == path and len(at) > 2 else at: place for at, place in places.items()
            }
        items = sources if isinstance(sources, list) else [sources]
        if sources is not None:
            values = replaced(values, path, [{"path": item} if isinstance(item, str) else item for item in items])
    return Layer(values, places)


def laid_over(over: Layer, base: Layer) -> Layer:
    """`over` on top of `base`: mappings are merged, lists and values replaced."""
    kept = {path: place for path, place in base.places.items() if not _is_replaced(path, over.values)}
    return Layer(_merged(base.values, over.values), kept | dict(over.places))


def lookup(values: Any, path: KeyPath) -> Any:
    """The value at a path; None where there is none."""
    for part in path:
        items = dict(enumerate(values)) if isinstance(values, list) else values
        if not isinstance(items, dict) or part not in items:
            return None
        values = items[part]
    return values


def replaced(values: Any, path: KeyPath, value: Any) -> Any:
    """A copy with another value at a path, whose containers exist."""
    if not path:
        return value
    part, rest = path[0], path[1:]
    if isinstance(part, str):
        return {**values, part: replaced(values.get(part), rest, value)}
    return [*values[:part], replaced(values[part], rest, value), *values[part + 1 :]]


def _merged(base: Any, over: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    return {
        key: _merged(base[key], over[key]) if key in base and key in over else (over if key in over else base)[key]
        for key in [*base, *(key for key in over if key not in base)]
    }


def _is_replaced(path: KeyPath, over: Any) -> bool:
    """Whether a key of the base is gone or written anew under `over`."""
    for part in path:
        if not isinstance(over, dict):
            return True
        if part not in over:
            return False
        over = over[part]
    return not isinstance(over, dict)
