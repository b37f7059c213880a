"""What columnar formats do to the values of a row, undone."""

from __future__ import annotations

from typing import Any


def without_nulls(value: Any) -> Any:
    """Drop null fields, which columnar formats invent for every key another row has; a null `content` stays."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None or key == "content"}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
