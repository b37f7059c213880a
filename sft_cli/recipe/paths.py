"""Paths in a recipe: `~` and `$VAR` expanded, relative ones made absolute, hub ids and builtins left alone."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from sft_cli.errors import RecipeError
from sft_cli.recipe.keys import SchemaPath, keys
from sft_cli.recipe.layer import Layer, lookup, replaced
from sft_cli.recipe.places import Places, join
from sft_cli.recipe.yaml_lines import KeyPath

HUB_OR_LOCAL: frozenset[SchemaPath] = frozenset(
    {
        ("model", "path"),
        ("model", "tokenizer"),
        ("data", "train"),
        ("data", "eval"),
        ("data", "train", "path"),
        ("data", "eval", "path"),
    }
)
LOCAL_INPUTS: frozenset[SchemaPath] = frozenset({("model", "chat_template")})
"""Files only, relative to the recipe that names them."""
OUTPUTS: tuple[SchemaPath, ...] = (("output_dir",), ("data", "cache_dir"))
"""Written by a run, relative to the working directory."""

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_LOCAL_FILE = re.compile(r"file://(?:localhost)?(?=/)", re.IGNORECASE)

RELATIVE_TO = "Paths in a recipe are relative to its folder, those of --set to the working directory."
"""For whoever names one that isn't there."""

FILE_SUFFIXES = (
    ".jsonl",
    ".json",
    ".parquet",
    ".jinja",
    ".csv",
    ".tsv",
    ".txt",
    ".arrow",
    ".gz",
    ".zst",
    ".safetensors",
)


def resolved(layer: Layer, name: str, folder: Path) -> Layer:
    """The layer with its paths absolute.

    Args:
        layer: what one file or --set says.
        name: the recipe's name, for errors.
        folder: what input paths are relative to.

    Raises:
        RecipeError: a variable or a user's home that doesn't exist.
    """
    places = Places(name, layer.places)

    def walk(value: Any, path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {key: walk(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item, (*path, index)) for index, item in enumerate(value)]
        return _one(value, tuple(part for part in path if isinstance(part, str)), places.of(join(path)), folder)

    return Layer(walk(layer.values, ()), layer.places)


def with_default_outputs(layer: Layer) -> Layer:
    """The layer with the paths that a run writes to, absolute, where the user left them to their defaults."""
    values = layer.values
    for path in OUTPUTS:
        section = lookup(values, path[:-1])
        if isinstance(section, dict) and path[-1] not in section:
            default = keys()[path].field.get_default()
            values = replaced(values, path, absolute(expanded(default, path[-1]), Path.cwd()))
    return Layer(values, layer.places)


def _one(value: Any, key: SchemaPath, where: str, folder: Path) -> Any:
    """One value of the recipe; what isn't a path is returned as it is."""
    if not isinstance(value, str) or not value or value.startswith("builtin:"):
        return value
    if key in OUTPUTS:
        return absolute(expanded(value, where), Path.cwd())
    if key in LOCAL_INPUTS:
        return absolute(expanded(value, where), folder)
    if key in HUB_OR_LOCAL:
        path = _LOCAL_FILE.sub("", expanded(value, where))
        if key[0] == "data" and is_address(path):
            return path
        return absolute(path, folder) if looks_local(path) or os.path.exists(Path(folder, path)) else path
    return value


def is_address(path: str) -> bool:
    """Whether a path is an address that says its protocol, such as `s3://bucket/chats/*.jsonl`."""
    return _ADDRESS.match(path) is not None


def looks_local(path: str) -> bool:
    """Whether a path can't be a hub id, by its spelling alone; hub ids are `name` or `owner/name`."""
    return (
        path in (".", "..")
        or path.startswith(("./", "../", "/", "~"))
        or path.endswith((*FILE_SUFFIXES, "/"))
        or path.count("/") > 1
        or any(character in path for character in "*?[")
    )


def absolute(path: str, folder: Path) -> str:
    """`path` seen from `folder`, without `..`; symbolic links stay."""
    return os.path.normpath(Path(folder, path).absolute())


def expanded(path: str, where: str) -> str:
    """`$VAR`, `${VAR}` and a leading `~` replaced; `$$` is a dollar sign.

    Raises:
        RecipeError: a variable that isn't set, a user that doesn't exist, a character that no path can have.
    """
    if "\0" in path:
        raise RecipeError("a path can't hold the character U+0000", where=where, fix="Remove it.")

    def value_of(match: re.Match[str]) -> str:
        variable = match[1] or match[2]
        if variable is None:
            return "$"
        if variable not in os.environ:
            raise RecipeError(
                f"${variable} isn't set", where=where, fix=f"Export {variable}, or write the path itself."
            )
        return os.environ[variable]

    home = os.path.expanduser(path)
    if home.startswith("~"):
        user = path.split("/")[0]
        fix = f"Write the path itself, or ./{user} for a file of that name."
        raise RecipeError(f"{user} is no user's home", where=where, fix=fix)
    return re.sub(r"\$(?:(\w+)|\{(\w+)\}|\$)", value_of, home)


def escaped(path: str) -> str:
    """The inverse of `expanded` for an absolute path."""
    return path.replace("$", "$$")
