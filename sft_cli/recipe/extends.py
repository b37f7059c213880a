"""`extends: other.yaml`: a recipe laid over the one it names, which may extend another."""

from __future__ import annotations

import os
from pathlib import Path

from sft_cli.errors import RecipeError
from sft_cli.recipe import builtin, paths
from sft_cli.recipe.layer import Layer, laid_over, normalised
from sft_cli.recipe.places import Place
from sft_cli.recipe.yaml_file import read
from sft_cli.recipe.yaml_lines import Document


def read_chain(path: Path, name: str) -> Layer:
    """Reads a recipe and everything it extends, paths made absolute.

    Args:
        path: the recipe's file.
        name: what errors call it.

    Raises:
        RecipeError: a file that can't be read, a cycle, an `extends` that is not a path.
    """
    layers: list[Layer] = []
    chain: dict[Path, str] = {}
    while True:
        chain[path.resolve()] = name
        document = read(path, name)
        rank = len(layers)
        places = {at: Place(name, line, rank) for at, line in document.lines.items()}
        own = Layer({key: value for key, value in document.values.items() if key != "extends"}, places)
        layers.append(normalised(paths.resolved(own, name, path.parent)))
        if "extends" not in document.values:
            break
        path, name = _base_of(document, path, name, chain)
    merged = layers.pop()
    while layers:
        merged = laid_over(layers.pop(), merged)
    return merged


def _base_of(document: Document, path: Path, name: str, chain: dict[Path, str]) -> tuple[Path, str]:
    """The file that a recipe extends, and what errors call it."""
    where = f"{name}:{document.lines[('extends',)]}: extends"
    base = document.values["extends"]
    if not isinstance(base, str) or not base:
        raise RecipeError("must be one path", where=where, fix="Write `extends: other.yaml`; chains go file by file.")
    if base.startswith(builtin.PREFIX):
        base_path, base_name = builtin.builtin_recipe(base, where), base
    else:
        expanded = paths.expanded(base, where)
        base_path = Path(paths.absolute(expanded, path.parent))
        # Errors call it as seen from where the user stands, like the recipe itself.
        base_name = os.path.normpath(Path(name).parent / expanded) if not name.startswith(builtin.PREFIX) else expanded
    if base_path.resolve() in chain:
        names = [*chain.values()][[*chain].index(base_path.resolve()) :]
        raise RecipeError(
            f"a circle: {' -> '.join([*names, base_name])}", where=where, fix="Remove one of these `extends`."
        )
    if not base_path.exists():
        raise RecipeError(
            f"no such file: {base_path}", where=where, fix="The path is relative to the recipe that names it."
        )
    return base_path, base_name
