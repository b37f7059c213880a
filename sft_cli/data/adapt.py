"""A chat as one template takes it: what templates differ in is found by rendering made-up chats, never by name.

A template that is given what it does not take raises, writes Python's `None` or `{'a': 1}` into the text, or leaves it
out. What it does take reaches it as the row has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sft_cli.data.formats.chat import Chat, Message
from sft_cli.data.formats.parts import is_plain, joined_text
from sft_cli.data.formats.tools import parsed_arguments

TryRender = Callable[[list[Message]], str | None]
"""Messages -> text; None where the template raises."""

_USER: Message = {"role": "user", "content": "Questionkq"}
_ANSWER: Message = {"role": "assistant", "content": "Answerkq"}
_RESULT: Message = {"role": "tool", "tool_call_id": "callkqkq1", "name": "toolkq", "content": "Resultkq"}
_THINK = re.compile(r"\s*<think>(.*?)</think>[\r\n]*", re.DOTALL)
"""Lines behind it may be indented, so only their breaks belong to it."""


@dataclass(frozen=True)
class Taken:
    """What a template takes."""

    reasoning: bool
    """It writes `reasoning_content`."""
    inline_reasoning: bool
    """It makes of a think block at the beginning of a text what it makes of `reasoning_content`."""
    null_content: bool
    """It writes nothing for content that is null beside tool calls."""
    text_parts: frozenset[str]
    """Roles whose content may be a list of text parts."""
    text_arguments: bool
    """It writes a call's arguments that are JSON text as they are."""
    object_arguments: bool
    """It writes a call's arguments that are an object."""
    tool_objects: bool
    """It writes a tool's result that is an object."""


def find_taken(render: TryRender) -> Taken:
    """Find out what a template takes, on a handful of made-up chats."""

    def holds(text: str | None, *needed: str) -> bool:
        return text is not None and all(piece in text for piece in needed)

    thought = render([_USER, _ANSWER | {"reasoning_content": "Reasonkq"}])
    inline = render([_USER, _ANSWER | {"content": f"<think>\nReasonkq\n</think>\n\n{_ANSWER['content']}"}])
    nulled = render(_tool_chat({"argkq": "valuekq"}, content=None))
    as_text = render(_tool_chat('{"argkq":  "valuekq"}', content=""))
    as_object = render(_tool_chat({"argkq": "valuekq"}, content=""))
    result = render(_tool_chat({"argkq": "valuekq"}, content="", result={"resultkq": "valuekq"}))
    return Taken(
        reasoning=holds(thought, "Reasonkq"),
        inline_reasoning=inline is not None and inline == thought,
        null_content=nulled is not None and "None" not in nulled,
        text_parts=frozenset(
            role
            for role in ("system", "user", "assistant", "tool")
            if holds(text := render(_parts_chat(role)), "Onekq", "Twokq") and "'type'" not in (text or "")
        ),
        # With two spaces after the colon: what is parsed and written again has one.
        text_arguments=holds(as_text, '{"argkq":  "valuekq"}'),
        object_arguments=holds(as_object, "argkq", "valuekq") and "'argkq'" not in (as_object or ""),
        tool_objects=holds(result, "resultkq") and "'resultkq'" not in (result or ""),
    )


def adapt(chat: Chat, taken: Taken) -> list[Message]:
    """The chat's messages as the template takes them.

    Raises:
        BadRow: arguments of a call that have to be parsed and can't be.
    """
    return [_adapt(message, number, taken) for number, message in enumerate(chat.messages, start=1)]


def _adapt(message: Message, number: int, taken: Taken) -> Message:
    changed: Message = {}
    content, role = message.get("content"), message.get("role")
    if is_plain(content) and (role not in taken.text_parts or split_thought(joined_text(content))):
        content = changed["content"] = joined_text(content)
    elif role == "tool" and isinstance(content, dict | list) and not is_plain(content) and not taken.tool_objects:
        changed["content"] = json.dumps(content, ensure_ascii=False)
    if role == "assistant":
        if taken.reasoning and not taken.inline_reasoning and not message.get("reasoning_content"):
            split = split_thought(content) if isinstance(content, str) else None
            if split is not None:
                changed["reasoning_content"], changed["content"] = split
        if message.get("tool_calls"):
            changed["tool_calls"] = [_adapt_call(call, number, taken) for call in message["tool_calls"]]
        if content is None and not taken.null_content:
            changed["content"] = ""
    return message | changed if changed else message


def split_thought(text: str) -> tuple[str, str] | None:
    """The reasoning of a think block at the beginning of a text, and the rest; None where there is none."""
    inline = _THINK.match(text)
    return None if inline is None else (inline[1].strip("\r\n"), text[inline.end() :])


def _adapt_call(call: dict[str, Any], number: int, taken: Taken) -> dict[str, Any]:
    function = call.get("function", call)
    arguments = function.get("arguments")
    if isinstance(arguments, str) and not taken.text_arguments and taken.object_arguments:
        arguments = parsed_arguments(arguments, function["name"], number)
    elif isinstance(arguments, dict) and not taken.object_arguments and taken.text_arguments:
        arguments = json.dumps(arguments, ensure_ascii=False)
    else:
        return call
    function = function | {"arguments": arguments}
    return call | {"function": function} if "function" in call else function


def _tool_chat(arguments: Any, *, content: str | None, result: Any = "Resultkq") -> list[Message]:
    # Nine letters and digits, which is what Mistral's templates ask of an id.
    call = {"id": "callkqkq1", "type": "function", "function": {"name": "toolkq", "arguments": arguments}}
    called: Message = {"role": "assistant", "content": content, "tool_calls": [call]}
    return [_USER, called, _RESULT | {"content": result}, _ANSWER]


def _parts_chat(role: str) -> list[Message]:
    parts = [{"type": "text", "text": "Onekq"}, {"type": "text", "text": "Twokq"}]
    if role == "system":
        return [{"role": "system", "content": parts}, _USER, _ANSWER]
    if role == "user":
        return [_USER | {"content": parts}, _ANSWER]
    if role == "assistant":
        return [_USER, _ANSWER | {"content": parts}]
    return _tool_chat({"argkq": "valuekq"}, content="", result=parts)
