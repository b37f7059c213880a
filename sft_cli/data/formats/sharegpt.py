"""ShareGPT's shape: {"conversations": [{"from": "human", "value": ...}], "system": ..., "tools": ...}."""

from __future__ import annotations

from typing import Any

from sft_cli.data.formats.chat import Chat, Message, kind_of
from sft_cli.data.formats.columns import system_message, turns_of
from sft_cli.data.formats.messages import from_messages
from sft_cli.data.formats.overrides import read_override, said
from sft_cli.data.formats.tools import read_calls_text, read_tools
from sft_cli.data.raw import BadRow

ROLES = {
    "human": "user", "user": "user",
    "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant", "bot": "assistant", "bing": "assistant",
    "bard": "assistant", "model": "assistant",
    "system": "system",
    "function_call": "function_call", "tool_call": "function_call",
    "observation": "tool", "tool": "tool", "function_response": "tool", "tool_response": "tool",
}  # fmt: skip


def from_sharegpt(row: dict[str, Any]) -> Chat:
    """A chat of ShareGPT's turns. Some sets keep messages of `role` and `content` under the same column.

    Raises:
        BadRow: a turn that is not one.
    """
    turns = turns_of(row, "conversations")
    if "role" in turns[0]:
        return from_messages(row, "conversations")
    messages = system_message(row) if turns[0].get("from") != "system" else []
    trained: list[bool | None] = [None] * len(messages)
    for number, turn in enumerate(turns, start=1):
        message = _read_turn(turn, number)
        messages.append(message)
        trained.append(read_override(turn, number, is_assistant=message["role"] == "assistant"))
    return Chat(messages, read_tools(row, wrap=True), "sharegpt", said(trained))


def _read_turn(turn: Message, number: int) -> Message:
    speaker, value = turn.get("from"), turn.get("value")
    role = ROLES.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        fix = f"Known under `from`: {', '.join(ROLES)}."
        raise BadRow("unknown speaker", f"turn {number} is from {speaker!r}", fix)
    if not isinstance(value, str):
        raise BadRow("content is not text", f"turn {number} has {kind_of(value)} under `value`", "Write a text there.")
    if role == "function_call":
        return {"role": "assistant", "content": "", "tool_calls": read_calls_text(value, number)}
    return {"role": role, "content": value}
