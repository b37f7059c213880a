"""What a rendering lacks of its chat: a template may drop or change what earlier turns said, without a word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sft_cli.data.adapt import split_thought
from sft_cli.data.formats.chat import Message
from sft_cli.data.formats.messages import REASONING_KEYS
from sft_cli.data.turns import Span

REASONING = "reasoning left out by the chat template"
TEXT = "text changed or left out by the chat template"
TOOLS = "tools left out by the chat template"


def find_losses(
    text: str, messages: list[Message], tools: list[dict[str, Any]] | None, regions: Sequence[Span]
) -> tuple[str, ...]:
    """The ways in which a rendering says less than its chat, each once.

    An assistant's text and reasoning are looked for where its turn stands, other texts anywhere, because templates move
    system messages.

    Args:
        text: the rendering.
        messages: the assistant's as the row has them; others as the template was given them.
        tools: as the template was given them.
        regions: where each assistant turn stands; where their number is another than that of the messages, the
            assistant's texts are looked for anywhere, too.
    """
    found: set[str] = set()
    for message, turn in _answers(text, messages, regions):
        reasoning, texts = _said(message)
        if any(not _is_in(turn, piece) for piece in texts):
            found.add(TEXT)
        if not _is_in(turn, reasoning):
            found.add(REASONING)
    others = [message for message in messages if message["role"] != "assistant"]
    if any(not _is_in(text, piece) for message in others for piece in _texts(message)):
        found.add(TEXT)
    if not all(_is_in(text, name_of(tool)) for tool in tools or []):
        found.add(TOOLS)
    return tuple(reason for reason in (REASONING, TEXT, TOOLS) if reason in found)


def first_lost_call(text: str, messages: list[Message], regions: Sequence[Span]) -> str | None:
    """The name of a tool call that a rendering doesn't hold in its assistant's turn; None where all are there.

    Args:
        text, messages, regions: as for `find_losses`. Elsewhere the name stands anyhow, in the list of tools.
    """
    for message, turn in _answers(text, messages, regions):
        for name in map(name_of, message.get("tool_calls") or []):
            if not _is_in(turn, name):
                return name
    return None


def name_of(tool: dict[str, Any]) -> str:
    """The name of a tool or of a call to one; empty where it has none."""
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _answers(text: str, messages: list[Message], regions: Sequence[Span]) -> list[tuple[Message, str]]:
    """Each assistant message with the text of its turn, or all of it where turns can't be told apart."""
    answers = [message for message in messages if message["role"] == "assistant"]
    if len(regions) != len(answers):
        return [(message, text) for message in answers]
    return [(message, text[start:end]) for message, (start, end) in zip(answers, regions, strict=True)]


def _said(message: Message) -> tuple[str, list[str]]:
    """Reasoning and texts of an assistant message; a think block at the beginning is reasoning."""
    texts = _texts(message)
    reasoning = next((message[key] for key in REASONING_KEYS if message.get(key)), None)
    if reasoning is None and (split := split_thought("".join(texts))) is not None:
        return split[0], [split[1]]
    return reasoning or "", texts


def _texts(message: Message) -> list[str]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return [text for text in texts if isinstance(text, str)]


def _is_in(text: str, piece: str) -> bool:
    """As it is, without the space around it, which templates trim; or as JSON, which some write tools' results in."""
    piece = piece.strip()
    return piece in text or any(json.dumps(piece, ensure_ascii=ascii)[1:-1] in text for ascii in (False, True))
