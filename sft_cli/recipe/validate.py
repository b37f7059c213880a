"""Values -> Recipe. What pydantic finds wrong is told with the line, what was got, what is wanted, and a remedy."""

from __future__ import annotations

import math
import re
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from sft_cli.errors import RecipeError
from sft_cli.recipe.keys import Key, keys, sections
from sft_cli.recipe.layer import Layer, lookup
from sft_cli.recipe.places import Places, join
from sft_cli.recipe.problems import Problem, raise_for
from sft_cli.recipe.schema import Recipe
from sft_cli.recipe.unknown_keys import misplaced
from sft_cli.recipe.values import shown
from sft_cli.recipe.yaml_lines import KeyPath

_EXAMPLES = {"model": "{path: Qwen/Qwen3.8-27B}", "model.path": "Qwen/Qwen3.8-27B", "data": "{train: chat.jsonl}"}
_SOURCE = "chat.jsonl"


def validate(layer: Layer, places: Places) -> Recipe:
    """The recipe as types, complete with defaults.

    Raises:
        RecipeError: unknown or missing keys, wrong types and values; all of them in one error, first line first.
    """
    known, problems = misplaced(layer.values)
    try:
        recipe = Recipe.model_validate(known)
    except ValidationError as error:
        # One union can fail in several ways; the key is told once, and not again where its spelling is the problem.
        wrong = list(dict.fromkeys(_key_path(tuple(detail["loc"])) for detail in error.errors(include_url=False)))
        wrong = [path for path in wrong if not any(other[: len(path)] == path and other != path for other in wrong)]
        told = {problem.key for problem in problems}
        hints = "\n".join(problem.fix or "" for problem in problems)
        for path in wrong:
            if join(path) not in told and f"`{path[-1]}`" not in hints:
                problems.append(_problem(path, known))
        raise_for(problems, places, RecipeError)
        raise
    raise_for(problems, places, RecipeError)
    return recipe


def _key_path(location: KeyPath) -> KeyPath:
    """The part of a pydantic location that is a key of the recipe; members of unions and tuples are cut off."""
    path: KeyPath = ()
    for part in location:
        longer = (*path, part)
        schema_path = tuple(item for item in longer if isinstance(item, str))
        if schema_path not in keys() and schema_path not in sections():
            break
        if isinstance(part, int) and schema_path not in sections():
            break
        path = longer
    return path


def _problem(path: KeyPath, values: dict[str, Any]) -> Problem:
    dotted = join(path)
    schema_path = tuple(part for part in path if isinstance(part, str))
    parent = lookup(values, path[:-1])
    if isinstance(parent, dict) and path[-1] not in parent:
        example = _EXAMPLES.get(dotted, _SOURCE)
        what = f"the recipe has no `{dotted}`" if len(path) == 1 else f"`{path[-1]}` is missing"
        return Problem(dotted, what, f"Add `{path[-1]}: {example}`.")
    value = lookup(values, path)
    key = keys().get(schema_path)
    if isinstance(path[-1], int) or key is None:
        return Problem(
            dotted, f"a source is a path or a mapping with `path`, got {shown(value)}", f"Write `- {_SOURCE}`."
        )
    if value in ("", [], ()):
        return Problem(dotted, f"expected {key.wanted}, got nothing", _remedy(key, value))
    return Problem(dotted, f"expected {key.wanted}, got {shown(value)}", _remedy(key, value))


def _remedy(key: Key, value: Any) -> str:
    if key.wanted.startswith("a list") and isinstance(value, str):
        return f"Write `{key.path[-1]}: [{value}]`."
    if key.words and isinstance(value, list):
        value = next((item for item in value if item not in key.words), None)
    if key.words and isinstance(value, str | bool):
        spelled = str(value).lower()
        close = get_close_matches(spelled, key.words, n=1, cutoff=0.5) or _meant_by(spelled, key.words)
        if close:
            return f"Did you mean `{close[0]}`?"
    plain = _plain_number(value)
    if plain is not None and key.wanted.startswith("a whole number"):
        return f"Write {plain}."
    if isinstance(value, str) and value in ("yes", "on", "no", "off", "y", "n") and "true" in key.wanted:
        return f"Write {'true' if value in ('yes', 'on', 'y') else 'false'}."
    if key.takes_text and isinstance(value, int | float):
        return "Put it in quotes."
    default = key.field.get_default()
    if key.is_sources or key.field.is_required():
        return f"Write `{key.path[-1]}: {_EXAMPLES.get(key.dotted, _SOURCE)}`."
    return f"Leave it out for the default, {shown_default(default)}."


def _meant_by(spelled: str, words: tuple[str, ...]) -> list[str]:
    """`off` and `false` for an enum that has a word for nothing."""
    return [word for word in words if word == "none"] if spelled in ("off", "no", "false", "null", "disabled") else []


def _plain_number(value: Any) -> str | None:
    """`131_072`, `"512"`, `1e3` and `8k` as the whole number they mean; None where there is none."""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return str(int(value))
    if isinstance(value, str):
        digits = value.replace("_", "").replace(",", "")
        thousands = re.fullmatch(r"(\d+)[kK]", digits)
        if thousands:
            return str(int(thousands[1]) * 1024)
        return digits if digits.isdecimal() else None
    return None


def shown_default(default: Any) -> str:
    """A default as one would write it."""
    if isinstance(default, str):
        return default
    if isinstance(default, tuple):
        return f"[{', '.join(map(str, default))}]"
    return re.sub(r"e-0(?=\d)", "e-", shown(default).removeprefix("the number "))
