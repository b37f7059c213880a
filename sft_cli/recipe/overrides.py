"""`--set section.key=value`: a dotted path and a YAML value, typed by the schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sft_cli.errors import RecipeError
from sft_cli.recipe import paths
from sft_cli.recipe.keys import keys
from sft_cli.recipe.layer import SOURCE_LISTS, Layer, laid_over, lookup, normalised, replaced
from sft_cli.recipe.places import Place, split
from sft_cli.recipe.yaml_lines import KeyPath, parse

_LAST_INDEX = 9999
_SHOWN_CHARACTERS = 60


def apply_override(layer: Layer, text: str, rank: int) -> Layer:
    """The recipe with one --set laid over it; mappings are merged, as with `extends`.

    Args:
        layer: the recipe so far.
        text: `batching.tokens=512`.
        rank: sorts its errors among those of other files and --sets.

    Raises:
        RecipeError: no `=`, a key path that can't be, a value that is not YAML, an item of a list that isn't there.
    """
    shown = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
    name = f"--set {shown}"
    dotted, equals, written = text.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.\w+)*", dotted.strip()):
        raise RecipeError("not `section.key=value`", where=name, fix="Write it like `--set batching.tokens=512`.")
    path = split(dotted.strip())
    if path == ("extends",):
        raise RecipeError("`extends` can't be set on the command line", where=name, fix="Write it in a recipe.")
    if any(isinstance(part, int) and part > _LAST_INDEX for part in path):
        raise RecipeError(f"no list is longer than {_LAST_INDEX} items", where=name, fix="Count from 0.")
    value = _value(written.strip(), path, name)
    place = Place(name, None, rank)
    own = Layer(_nested(path, value), {path: place})
    own = paths.resolved(own, name, Path.cwd())
    if not any(isinstance(part, int) for part in path):
        return laid_over(normalised(own), layer)
    return _with_item(layer, path, lookup(own.values, path), place)


def _nested(path: KeyPath, value: Any) -> Any:
    """{"data": {"train": [..., {"path": value}]}}: the value alone in its containers."""
    for part in reversed(path):
        value = [None] * part + [value] if isinstance(part, int) else {part: value}
    return value


def _value(written: str, path: KeyPath, name: str) -> Any:
    """A YAML value; where the schema wants text, `0123`, `true` and `*.jsonl` are text too."""
    key = keys().get(tuple(part for part in path if isinstance(part, str)))
    takes_text = key is not None and key.takes_text
    try:
        value = parse(written, name).values
    except RecipeError as error:
        if takes_text:
            return written
        raise RecipeError(error.what, where=name, fix=error.fix) from error
    if takes_text and isinstance(value, int | float):
        return written
    return value


def _with_item(layer: Layer, path: KeyPath, value: Any, place: Place) -> Layer:
    """The recipe with one item of a list, or one key of such an item, replaced; the next free index appends."""
    at = next(index for index, part in enumerate(path) if isinstance(part, int))
    list_path, index, rest = path[:at], int(path[at]), path[at + 1 :]
    dotted = ".".join(map(str, list_path))
    items = lookup(layer.values, list_path)
    if items is None and list_path in SOURCE_LISTS:
        items = []
    if not isinstance(items, list):
        raise RecipeError(
            f"{dotted} is not a list, so it has no item {index}", where=place.source, fix="Leave out the number."
        )
    if index > len(items):
        raise RecipeError(
            f"{dotted} has {len(items)} items, so item {index} can't be set",
            where=place.source,
            fix=f"Count from 0; {dotted}.{len(items)} appends one.",
        )
    if rest and not (index < len(items) and isinstance(items[index], dict)):
        value, rest = _nested(rest, value), ()
    item = replaced(items[index], rest, value) if rest else value
    values = _ensured(layer.values, list_path)
    values = replaced(values, list_path, [*items[:index], item, *items[index + 1 :]])
    kept = {at: known for at, known in layer.places.items() if at[: len(path)] != path}
    return normalised(Layer(values, {**kept, path: place}))


def _ensured(values: dict[str, Any], list_path: KeyPath) -> dict[str, Any]:
    """The values with every section on the way to a list, empty where it was absent."""
    section = list_path[:-1]
    return values if isinstance(lookup(values, section), dict) else replaced(values, section, {})
