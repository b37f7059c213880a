"""The shapes a row may have, one file each, and how a row's is found."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sft_cli.data.formats.alpaca import OUTPUTS, from_alpaca
from sft_cli.data.formats.chat import KNOWN_SHAPES, Chat, Format, Message, kind_of
from sft_cli.data.formats.messages import from_messages
from sft_cli.data.formats.prompt_completion import from_prompt_completion, pairs_in
from sft_cli.data.formats.sharegpt import from_sharegpt
from sft_cli.data.raw import BadRow

__all__ = ["Chat", "Message", "detect", "to_chat"]


def to_chat(row: Any, format: str) -> Chat:
    """Turn a row into a chat.

    Args:
        row: as read.
        format: `auto` looks at the row's columns; any other is insisted on.

    Raises:
        BadRow: the row has another shape, no message, or a message that is not one.
    """
    if not isinstance(row, dict):
        raise BadRow("not an object", f"a row is {kind_of(row)}", KNOWN_SHAPES)
    # Files of several shapes that were put together have all columns in each row, most of them null.
    filled = [column for column, value in row.items() if value is not None]
    shape = detect(filled) or detect(row) if format == "auto" else format
    if shape == "messages":
        return from_messages(row)
    if shape == "sharegpt":
        return from_sharegpt(row)
    if shape == "alpaca":
        return from_alpaca(row)
    if shape == "prompt_completion":
        return from_prompt_completion(row, filled if pairs_in(filled) else row)
    raise BadRow("unknown shape", f"the row has the columns {', '.join(map(str, row)) or '(none)'}", KNOWN_SHAPES)


def detect(columns: Collection[str]) -> Format | None:
    """The first shape whose columns are there: a row with messages may well have a prompt, too."""
    if "messages" in columns:
        return "messages"
    if "conversations" in columns:
        return "sharegpt"
    if "instruction" in columns and any(output in columns for output in OUTPUTS):
        return "alpaca"
    return "prompt_completion" if pairs_in(columns) else None
