"""What the interface has and this version does not do yet. One table; a line goes when its feature comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sft_cli.errors import RecipeError
from sft_cli.recipe.places import Places
from sft_cli.recipe.problems import Problem, raise_for
from sft_cli.recipe.schema import Recipe


@dataclass(frozen=True)
class Unbuilt:
    """A key, and what is built of it.

    Args:
        key: dotted path in the recipe.
        is_built: whether a value is served by this version.
        instead: what to write for now.
    """

    key: str
    is_built: Callable[[Any], bool]
    instead: str


def _only(*values: Any) -> Callable[[Any], bool]:
    """Built for these values; a type must agree too, so that 1 is not True."""
    return lambda value: any(type(value) is type(built) and value == built for built in values)


KEYS: tuple[Unbuilt, ...] = (Unbuilt("kernels.hub", _only(False), "Write `false`."),)


def check(recipe: Recipe, places: Places) -> None:
    """Passes a recipe that this version can run.

    Raises:
        RecipeError: a key or value that is not built yet.
    """
    raise_for(_asked_for(KEYS, recipe.model_dump()), places, RecipeError)


def is_built(key: str, value: Any) -> bool:
    """Whether a value of one key is served by this version."""
    return all(entry.is_built(value) for entry in KEYS if entry.key == key)


def _asked_for(table: tuple[Unbuilt, ...], values: dict[str, Any]) -> list[Problem]:
    asked = [(entry, _value(entry.key, values)) for entry in table]
    return [
        Problem(entry.key, f"{_shown(entry.key, value)} is not built yet in this version", entry.instead)
        for entry, value in asked
        if not entry.is_built(value)
    ]


def _value(key: str, values: dict[str, Any]) -> Any:
    found: Any = values
    for part in key.split("."):
        found = found[part]
    return found


def _shown(key: str, value: Any) -> str:
    name = key.rsplit(".", 1)[1]
    if isinstance(value, bool):
        return f"`{name}: {str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{name}: [{', '.join(value)}]`"
    return f"`{name}: {value}`"
