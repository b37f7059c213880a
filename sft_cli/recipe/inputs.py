"""Local files that a recipe names and that aren't there: found before anything slow starts, told with the line."""

from __future__ import annotations

import glob
import os
from difflib import get_close_matches
from pathlib import Path

from sft_cli.errors import DataError, ModelError
from sft_cli.recipe.paths import RELATIVE_TO
from sft_cli.recipe.places import Places
from sft_cli.recipe.schema import Recipe


def check_data(recipe: Recipe, places: Places) -> None:
    """Passes a recipe whose local data files exist; hub ids and builtins are not looked at.

    Raises:
        DataError: a file, folder or glob that finds nothing.
    """
    for name, sources in (("train", recipe.data.train), ("eval", recipe.data.eval)):
        for index, source in enumerate(sources):
            if (
                os.path.isabs(source.path)
                and not os.path.exists(source.path)
                and not glob.glob(source.path, recursive=True)
            ):
                where = places.of(f"data.{name}.{index}.path")
                if glob.has_magic(source.path):
                    raise DataError(f"no file matches the pattern: {source.path}", where=where, fix=RELATIVE_TO)
                raise DataError(f"no such file: {source.path}", where=where, fix=nearest(Path(source.path)))


def check_chat_template(recipe: Recipe, places: Places) -> None:
    """Passes a recipe whose chat template, where it names one, is a file.

    Raises:
        ModelError: it isn't.
    """
    template = recipe.model.chat_template
    if template is None or os.path.isfile(template):
        return
    where = places.of("model.chat_template")
    if os.path.exists(template):
        raise ModelError(f"a chat template is a file: {template}", where=where, fix="Name the .jinja file.")
    raise ModelError(f"no such file: {template}", where=where, fix=nearest(Path(template)))


def nearest(path: Path) -> str:
    """What a path that doesn't exist may have meant: a name like it beside it, or the same name seen from here."""
    folder = path.parent
    if not folder.is_dir():
        missing = next(parent for parent in reversed([path, *path.parents]) if not parent.exists())
        return f"{missing.parent} has no {missing.name}; paths in a recipe are relative to the recipe's folder."
    close = get_close_matches(path.name, os.listdir(folder), n=1)
    if close:
        return f"Did you mean {folder / close[0]}?"
    if Path(path.name).exists():
        return f"Paths in a recipe are relative to the recipe's folder; there is {Path(path.name).absolute()}."
    return f"Put it into {folder}, or correct the path."
