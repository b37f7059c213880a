"""OpenAI's shape: {"messages": [{"role": ..., "content": ...}], "tools": [...]}."""

from __future__ import annotations

from typing import Any

from sft_cli.data.formats.chat import KNOWN_SHAPES, Chat, Message, kind_of
from sft_cli.data.formats.columns import parsed_list, turns_of
from sft_cli.data.formats.overrides import read_override, said, without_override
from sft_cli.data.formats.parts import are_parts, read_parts
from sft_cli.data.formats.tools import checked_call, read_tools
from sft_cli.data.raw import BadRow

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Where rows keep reasoning; the first is what templates read."""


def from_messages(row: dict[str, Any], column: str = "messages") -> Chat:
    """A chat of messages, as the row has them where a template may take them so.

    Raises:
        BadRow: a message that is not one.
    """
    messages, trained = read_messages(turns_of(row, column))
    return Chat(messages, read_tools(row, wrap=False), "messages", said(trained))


def read_messages(turns: list[Message]) -> tuple[list[Message], tuple[bool | None, ...]]:
    """Messages, and what each says of its supervision.

    Raises:
        BadRow: a message that is not one.
    """
    messages = [_read_message(turn, number) for number, turn in enumerate(turns, start=1)]
    trained = tuple(
        read_override(message, number, is_assistant=message["role"] == "assistant")
        for number, message in enumerate(messages, start=1)
    )
    return [without_override(message) for message in messages], trained


def _read_message(message: Message, number: int) -> Message:
    role = message.get("role")
    if not isinstance(role, str):
        raise BadRow("a message without a role", f"message {number} has no text under `role`", KNOWN_SHAPES)
    message = _with_calls(message, number)
    content = message.get("content")
    if isinstance(content, list) and (role != "tool" or are_parts(content)):
        message = read_parts(message, number)
    elif content is not None and not isinstance(content, str) and not (role == "tool" and _is_json(content)):
        fix = "Write a text, or a list of text parts."
        raise BadRow("content is not text", f"message {number} has {kind_of(content)} under `content`", fix)
    reasoning = next((message[key] for key in REASONING_KEYS if message.get(key)), None)
    if reasoning is not None and not isinstance(reasoning, str):
        raise BadRow("reasoning is not text", f"message {number} has {kind_of(reasoning)}", "Write a text there.")
    if reasoning is not None and not message.get("reasoning_content"):
        message = message | {"reasoning_content": reasoning}
    if message.get("content") is None and not message.get("tool_calls") and reasoning is None:
        fix = "Give it a text, or remove the message."
        raise BadRow("content is null", f"message {number} ({role}) has nothing beside it", fix)
    return message


def _is_json(content: Any) -> bool:
    """A tool's result as an object or a list; it is written as JSON where the template doesn't do so."""
    return isinstance(content, dict | list)


def _with_calls(message: Message, number: int) -> Message:
    """Calls as a list; OpenAI's older `function_call`, with its role `function`, as today's."""
    if message["role"] == "function":
        message = message | {"role": "tool"}
    older = message.get("function_call")
    if older and not message.get("tool_calls"):
        message = {key: value for key, value in message.items() if key != "function_call"}
        message["tool_calls"] = [{"type": "function", "function": older}]
    calls = parsed_list(message.get("tool_calls"))
    if not calls:
        return message
    if not isinstance(calls, list):
        what = f"message {number} has {kind_of(calls)} under `tool_calls`"
        raise BadRow("tool calls are not a list", what, "Write a list of calls there.")
    for call in calls:
        checked_call(call, number)
    return message if calls is message["tool_calls"] else message | {"tool_calls": calls}
