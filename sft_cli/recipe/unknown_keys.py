"""Keys that the schema doesn't have, and sections that aren't mappings: what was meant instead."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from sft_cli.recipe.foreign_keys import FOREIGN_KEYS
from sft_cli.recipe.keys import SchemaPath, keys, sections
from sft_cli.recipe.layer import SOURCE_LISTS
from sft_cli.recipe.places import join
from sft_cli.recipe.problems import Problem
from sft_cli.recipe.values import shown
from sft_cli.recipe.yaml_lines import KeyPath


def misplaced(values: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Splits a recipe into what the schema knows and one problem for each key that it doesn't.

    Args:
        values: a recipe, sources as lists of mappings.
    """
    problems: list[Problem] = []
    return _section(values, (), problems), problems


def _section(values: dict[str, Any], path: KeyPath, problems: list[Problem]) -> dict[str, Any]:
    """The known keys of one section."""
    schema_path = _schema_path(path)
    known: dict[str, Any] = {}
    for name, value in values.items():
        if name not in sections()[schema_path].model_fields:
            problems.append(_unknown(name, path))
            continue
        inner = (*schema_path, name)
        if inner in SOURCE_LISTS and isinstance(value, list):
            known[name] = [
                _section(item, (*path, name, index), problems) if isinstance(item, dict) else item
                for index, item in enumerate(value)
            ]
        elif inner not in sections() or inner in SOURCE_LISTS:
            known[name] = value
        elif isinstance(value, dict):
            known[name] = _section(value, (*path, name), problems)
        else:
            problems.append(_not_a_section((*path, name), value))
    return known


def _schema_path(path: KeyPath) -> SchemaPath:
    return tuple(part for part in path if isinstance(part, str))


def _not_a_section(path: KeyPath, value: Any) -> Problem:
    names = list(sections()[_schema_path(path)].model_fields)
    likely = names[0]
    fits = isinstance(value, str) and likely in ("path", "name", "mode", "train")
    example = f"Write `{path[-1]}: {{{likely}: {value}}}`." if fits else f"Its keys: {', '.join(names)}."
    return Problem(join(path), f"a section, not a single value; got {shown(value)}", example)


def _unknown(name: str, path: KeyPath) -> Problem:
    here = _schema_path(path)
    key = join((*path, name))
    homes = list(_homes(name, here))
    if homes:
        place = " or ".join(f"in `{'.'.join(home)}`" if home else "at the top level" for home in homes)
        return Problem(key, f"`{name}` belongs {place}, not {_standing(here)}", _moved(name, homes[0]))
    # A letter away from a key of this section it is a slip: `batching.token` is no secret.
    if name in FOREIGN_KEYS and not get_close_matches(name, sections()[here].model_fields, n=1, cutoff=0.9):
        answer = FOREIGN_KEYS[name]
        return Problem(key, f"there is no key `{name}`: {answer.what}", answer.fix)
    close = list(_similar(name, here))
    fix = (
        f"Did you mean `{close[0]}`?"
        if close
        else f"The keys {_standing(here)}: {', '.join(sections()[here].model_fields)}."
    )
    return Problem(key, f"there is no key `{name}` {_standing(here)}", fix)


def _standing(section: SchemaPath) -> str:
    return f"in `{'.'.join(section)}`" if section else "at the top level"


def _moved(name: str, home: SchemaPath) -> str:
    return f"Move it under `{'.'.join(home)}:`." if home else f"Move `{name}` to the top level."


def _homes(name: str, here: SchemaPath) -> Iterator[SchemaPath]:
    """The sections that do have a key of this name, nearest first; sources only for what can't be elsewhere."""
    having = [path for path, section in sections().items() if name in section.model_fields and path != here]
    ordered = sorted(having, key=lambda path: (path in SOURCE_LISTS, path[: len(here)] != here, len(path)))
    yield from (path for path in ordered if path != ("data", "eval"))


def _similar(name: str, here: SchemaPath) -> Iterator[str]:
    """Keys spelled nearly so: of this section, else of any, with their section."""
    yield from get_close_matches(name, sections()[here].model_fields, n=1, cutoff=0.75)
    everywhere: dict[str, str] = {}
    for path in [*keys(), *sections()]:
        if path:
            everywhere.setdefault(path[-1], ".".join(path))
    for match in get_close_matches(name, everywhere, n=1, cutoff=0.75):
        yield everywhere[match]
    yield from get_close_matches(name, sections()[here].model_fields, n=1, cutoff=0.6)
