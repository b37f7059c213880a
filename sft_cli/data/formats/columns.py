"""Columns of a row that several shapes share: lists of turns, plain texts, a system text."""

from __future__ import annotations

import json
from typing import Any

from sft_cli.data.formats.chat import KNOWN_SHAPES, Message, kind_of
from sft_cli.data.raw import BadRow

Row = dict[str, Any]


def turns_of(row: Row, column: str) -> list[Message]:
    """The list of objects in a column; in CSV and some Parquet files it is JSON text.

    Raises:
        BadRow: it is something else, or empty.
    """
    turns = parsed_list(row.get(column))
    if not isinstance(turns, list):
        what = "no column" if column not in row else f"{kind_of(turns)} under"
        raise BadRow("unknown shape", f"{what} `{column}`, where a list is expected", KNOWN_SHAPES)
    if not turns:
        raise BadRow("no messages", f"`{column}` is empty", "Remove the row, or fill it.")
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict):
            raise BadRow("unknown shape", f"item {number} of `{column}` is {kind_of(turn)}", KNOWN_SHAPES)
    return turns


def parsed_list(value: Any) -> Any:
    """JSON text of a list, parsed; anything else as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def text_of(row: Row, column: str) -> str:
    """The text in a column.

    Raises:
        BadRow: there is none.
    """
    value = row.get(column)
    if not isinstance(value, str):
        what = "no column" if column not in row else f"{kind_of(value)} under"
        raise BadRow("content is not text", f"{what} `{column}`", "Write a text there, or remove the row.")
    return value


def optional_text_of(row: Row, column: str) -> str:
    """The text in a column that may be missing, null or empty: then an empty one."""
    return "" if row.get(column) is None else text_of(row, column)


def system_message(row: Row) -> list[Message]:
    """The row's `system` column as a first message; none where it is missing or empty."""
    system = optional_text_of(row, "system")
    return [{"role": "system", "content": system}] if system else []
