"""Content as a list of typed parts, [{"type": "text", "text": ...}]."""

from __future__ import annotations

from typing import Any, TypeGuard

from sft_cli.data.formats.chat import Message, kind_of
from sft_cli.data.formats.tools import read_calls_text
from sft_cli.data.raw import BadRow

_TEXT = {"text", "input_text", "output_text"}
_REASONING = {"reasoning", "thinking"}
_OTHER_MEDIA = ("image", "audio", "video", "file")


def are_parts(content: Any) -> bool:
    """Whether a list is one of parts; a tool's result may be any list."""
    return isinstance(content, list) and all(
        isinstance(part, str) or (isinstance(part, dict) and isinstance(part.get("type"), str)) for part in content
    )


def is_plain(content: Any) -> TypeGuard[list[dict[str, str]]]:
    """Whether all parts are of OpenAI's text type, which templates may know."""
    return (
        isinstance(content, list)
        and bool(content)
        and all(
            isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
            for part in content
        )
    )


def joined_text(content: list[dict[str, str]]) -> str:
    """The texts of plain parts."""
    return "".join(part["text"] for part in content)


def read_parts(message: Message, number: int) -> Message:
    """A message whose content is parts, with texts, reasoning and calls where other messages have them.

    Plain text parts stay as they are, because a template may take them.

    Args:
        message: as the row has it.
        number: its place in the row, from 1.

    Raises:
        BadRow: a part that is not text.
    """
    content = message["content"]
    if is_plain(content):
        return message
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in content:
        kind = "text" if isinstance(part, str) else part.get("type") if isinstance(part, dict) else None
        value = part if isinstance(part, str) else _value_of(part, kind, number)
        if kind in _TEXT:
            texts.append(value)
        elif kind in _REASONING:
            reasoning.append(value)
        else:
            calls += read_calls_text(value, number)
    read = message | {"content": "".join(texts)}
    if reasoning:
        read["reasoning_content"] = "\n\n".join(reasoning)
    if calls:
        read["tool_calls"] = [*(message.get("tool_calls") or []), *calls]
    return read


def _value_of(part: Any, kind: Any, number: int) -> str:
    if not isinstance(kind, str):
        what = kind_of(part) if not isinstance(part, dict) else "an object without `type`"
        raise BadRow("content is not text", f"message {number} has {what} among its parts", "Write parts of text.")
    if any(media in kind for media in _OTHER_MEDIA):
        fix = "sftune trains text only: remove the row, or the part."
        raise BadRow(f"a part that is not text ({kind})", f"message {number}", fix)
    if kind not in _TEXT | _REASONING | {"tool_call"}:
        fix = "Known types of parts: text, reasoning, tool_call. sftune trains text only."
        raise BadRow(f"a part of an unknown type ({kind})", f"message {number}", fix)
    value = next((part[key] for key in ("text", "value", kind) if part.get(key) is not None), None)
    if not isinstance(value, str):
        what = f"message {number} has {kind_of(value)} in a part of type {kind}"
        raise BadRow("content is not text", what, "Write a text there, or remove the part.")
    return value
