"""The shapes a row may have, and how each becomes a chat: messages and tools."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from sft_cli.data.raw import BadRow

Message = dict[str, Any]

KNOWN_SHAPES = (
    'Known shapes: {"messages": [{"role": ..., "content": ...}]} and '
    '{"conversations": [{"from": "human" or "gpt", "value": ...}]}.'
)
SHAREGPT_ROLES = {
    "human": "user", "user": "user",
    "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant", "bot": "assistant", "bing": "assistant",
    "bard": "assistant", "model": "assistant",
    "system": "system",
    "function_call": "function_call", "tool_call": "function_call",
    "observation": "tool", "tool": "tool", "function_response": "tool", "tool_response": "tool",
}  # fmt: skip


@dataclass(frozen=True)
class Chat:
    """A conversation as a chat template takes it."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    format: Literal["messages", "sharegpt"]
    """The shape it had."""


def to_chat(row: Any, format: str) -> Chat:
    """Turn a row into a chat. `messages` rows pass through untouched.

    Args:
        row: as read.
        format: `auto` looks at the columns; `messages` or `sharegpt` is insisted on.

    Raises:
        BadRow: the row has another shape, or no message.
    """
    if not isinstance(row, dict):
        raise BadRow("not an object", f"a row is {_kind(row)}", KNOWN_SHAPES)
    if format == "messages" or (format == "auto" and "messages" in row):
        return _from_messages(row, "messages")
    if format == "sharegpt" or (format == "auto" and "conversations" in row):
        # Some sets keep messages of `role` and `content` under ShareGPT's column.
        return _from_messages(row, "conversations") if _has_roles(row) else _from_sharegpt(row)
    if format != "auto":
        raise ValueError(f"format {format!r} is not built")
    raise BadRow("unknown shape", f"the row has the columns {', '.join(map(str, row)) or '(none)'}", KNOWN_SHAPES)


def _has_roles(row: dict[str, Any]) -> bool:
    turns = row.get("conversations")
    return isinstance(turns, list) and bool(turns) and isinstance(turns[0], dict) and "role" in turns[0]


def _from_messages(row: dict[str, Any], column: str) -> Chat:
    messages = _turns(row, column)
    for number, message in enumerate(messages, start=1):
        if not isinstance(message.get("role"), str):
            raise BadRow("a message without a role", f"message {number} has no text under `role`", KNOWN_SHAPES)
        content = message.get("content")
        if content is not None and not isinstance(content, str | list | dict):
            raise BadRow("content is not text", f"message {number} has {_kind(content)} under `content`")
    return Chat(messages, _tools(row, wrap=False), "messages")


def _from_sharegpt(row: dict[str, Any]) -> Chat:
    turns = _turns(row, "conversations")
    messages: list[Message] = []
    if isinstance(row.get("system"), str) and row["system"] and turns[0].get("from") != "system":
        messages.append({"role": "system", "content": row["system"]})
    for number, turn in enumerate(turns, start=1):
        speaker, value = turn.get("from"), turn.get("value")
        role = SHAREGPT_ROLES.get(speaker) if isinstance(speaker, str) else None
        if role is None:
            known = ", ".join(SHAREGPT_ROLES)
            raise BadRow("unknown speaker", f"turn {number} is from {speaker!r}", f"Known under `from`: {known}.")
        if not isinstance(value, str):
            raise BadRow("content is not text", f"turn {number} has {_kind(value)} under `value`")
        messages.append(_function_call(value, number) if role == "function_call" else {"role": role, "content": value})
    return Chat(messages, _tools(row, wrap=True), "sharegpt")


def _turns(row: dict[str, Any], column: str) -> list[Message]:
    turns = row.get(column)
    if not isinstance(turns, list):
        what = "no column" if column not in row else f"{_kind(turns)} under"
        raise BadRow("unknown shape", f"{what} `{column}`, where a list is expected", KNOWN_SHAPES)
    if not turns:
        raise BadRow("no messages", f"`{column}` is empty")
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict):
            raise BadRow("unknown shape", f"item {number} of `{column}` is {_kind(turn)}", KNOWN_SHAPES)
    return turns


def _function_call(value: str, number: int) -> Message:
    """ShareGPT writes calls as JSON text: {"name": ..., "arguments": {...}}, or a list of such."""
    try:
        calls = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadRow("a function call that is not JSON", f"turn {number}: {error}") from error
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise BadRow("a function call without a name", f"turn {number}")
    functions = [{"name": call["name"], "arguments": call.get("arguments", {})} for call in calls]
    tool_calls = [{"type": "function", "function": function} for function in functions]
    return {"role": "assistant", "content": "", "tool_calls": tool_calls}


def _tools(row: dict[str, Any], *, wrap: bool) -> list[dict[str, Any]] | None:
    """The row's tools, JSON text parsed; `wrap` puts bare functions into {"type": "function", ...}."""
    tools = row.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except (ValueError, RecursionError) as error:
            raise BadRow("tools are not JSON", str(error)) from error
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRow("tools are not a list of functions")
    if not wrap:
        return tools
    return [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]


def _kind(value: Any) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), f"a {type(value).__name__}")
