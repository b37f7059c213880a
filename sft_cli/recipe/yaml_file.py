"""One recipe file: found, read as text, and checked to be a YAML mapping."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from sft_cli.errors import RecipeError
from sft_cli.recipe.yaml_lines import Document, parse

MAX_BYTES = 1_000_000


def read(path: Path, name: str) -> Document:
    """Reads a recipe file, which must be one YAML mapping.

    Raises:
        RecipeError: no such file, a folder, not text, empty, no mapping, or anything that `parse` raises.
    """
    document = parse(_read_text(path, name), name)
    if document.values is None:
        raise RecipeError("the recipe is empty", where=name, fix="`sftune init FILE` writes a starter recipe.")
    if not isinstance(document.values, dict):
        kind = "a list" if isinstance(document.values, list) else "a single value"
        raise RecipeError(
            f"a recipe is a mapping of sections, this file holds {kind}",
            where=f"{name}:1",
            fix="Start it with `model:` and `data:`; `sftune init FILE` writes a starter recipe.",
        )
    return document


def _read_text(path: Path, name: str) -> str:
    if os.path.isdir(path):
        raise RecipeError("a folder, not a recipe", where=name, fix="Name the .yaml file in it.")
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise RecipeError("no such file", where=name, fix=_nearby(path)) from error
    except OSError as error:
        raise RecipeError(f"can't be read: {error.strerror}", where=name, fix="Check its permissions.") from error
    if len(raw) > MAX_BYTES:
        raise RecipeError(f"larger than {MAX_BYTES // 1000} kB: not a recipe", where=name, fix="Name a recipe.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RecipeError("not UTF-8 text", where=f"{name}:{line}", fix="Save the file as UTF-8.") from error


def _nearby(path: Path) -> str:
    folder = path.parent
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    recipes = [name for name in names if name.endswith((".yaml", ".yml"))]
    close = get_close_matches(path.name, recipes, n=1)
    if close:
        return f"Did you mean {folder / close[0]}?"
    return "`sftune init FILE` writes a starter recipe."
