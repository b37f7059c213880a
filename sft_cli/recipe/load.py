"""Reads a recipe: file, `extends`, --set, schema, rules, and what is not built yet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sft_cli.recipe import builtin, extends, paths, rules, unbuilt
from sft_cli.recipe.overrides import apply_override
from sft_cli.recipe.places import Places
from sft_cli.recipe.schema import Recipe
from sft_cli.recipe.validate import validate

DEFAULT_FILE = "sftune.yaml"
DEFAULT_BUILTIN = "builtin:tiny"


@dataclass(frozen=True)
class Loaded:
    """A valid recipe.

    Args:
        recipe: complete with defaults, paths absolute.
        origin: what it was read from, for people: `recipe.yaml`, `the built-in tiny recipe`.
        places: where each key was written.
    """

    recipe: Recipe
    origin: str
    places: Places


def load_recipe(path: Path | None, overrides: Sequence[str] = ()) -> Loaded:
    """Reads, merges and checks a recipe.

    Args:
        path: the file, or `builtin:tiny`; None means ./sftune.yaml, else the built-in tiny recipe.
        overrides: the --set options, in order: `batching.tokens=512`.

    Raises:
        RecipeError: anything wrong with the recipe, with the place and the remedy.
        KernelError: a kernel that this version doesn't have.
    """
    file, name, origin = _find(path)
    layer = extends.read_chain(file, name)
    for index, text in enumerate(overrides):
        # --sets come after every file of the chain, however long that is.
        layer = apply_override(layer, text, rank=1_000 + index)
    layer = paths.with_default_outputs(layer)
    places = Places(name, dict(layer.places))
    recipe = validate(layer, places)
    rules.check(recipe, places)
    unbuilt.check(recipe, places)
    return Loaded(recipe, origin, places)


def _find(path: Path | None) -> tuple[Path, str, str]:
    """The file, what errors call it, and what people call it."""
    if path is None:
        if os.path.lexists(DEFAULT_FILE):
            return Path(DEFAULT_FILE), DEFAULT_FILE, f"{DEFAULT_FILE} in the working directory"
        return builtin.builtin_recipe(DEFAULT_BUILTIN), DEFAULT_BUILTIN, "the built-in tiny recipe"
    name = str(path)
    if name.startswith(builtin.PREFIX):
        return builtin.builtin_recipe(name), name, f"the built-in recipe {name.removeprefix(builtin.PREFIX)}"
    return path, name, name
