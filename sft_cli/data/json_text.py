"""JSON as the standard has it, where Python's reader takes more."""

from __future__ import annotations

import json
from math import isinf
from typing import Any


def parse_json(text: str) -> Any:
    """The value that a text stands for.

    Raises:
        ValueError: it is not JSON (a JSONDecodeError knows where); a number that is none (NaN, Infinity) or becomes
            none (1e999), which would be written into tool arguments; a key that stands twice in an object, of which
            one would be lost unseen.
        RecursionError: it is nested too deep.
    """
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if isinf(number):
        raise ValueError(f"{digits} is too large a number")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {json.dumps(twice)} stands twice in an object")
    return found
