"""Values of a recipe as an error shows them."""

from __future__ import annotations

import json
from typing import Any

_SHOWN_CHARACTERS = 60


def shown(value: Any) -> str:
    """`the text "off"`, `the number 3`, `true`, `null`, a list or mapping: short, in the recipe's spelling."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > _SHOWN_CHARACTERS:
        text = text[: _SHOWN_CHARACTERS - 3] + "..."
    if isinstance(value, str):
        return f"the text {text}"
    if isinstance(value, int | float):
        return f"the number {_number(value)}"
    return f"the {'mapping' if isinstance(value, dict) else 'list'} {text}"


def _number(value: float) -> str:
    spelled = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}
    return spelled.get(repr(value), repr(value))
