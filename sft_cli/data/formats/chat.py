"""A conversation as a chat template takes it, whatever shape its row had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Message = dict[str, Any]
Format = Literal["messages", "sharegpt", "alpaca", "prompt_completion"]

KNOWN_SHAPES = (
    'Known shapes: {"messages": [{"role": ..., "content": ...}]}, '
    '{"conversations": [{"from": "human" or "gpt", "value": ...}]}, '
    '{"instruction": ..., "input": ..., "output": ...} and {"prompt": ..., "completion": ...}.'
)


@dataclass(frozen=True)
class Chat:
    """A conversation as a chat template takes it."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    format: Format
    """The shape it had."""
    trained: tuple[bool | None, ...] = ()
    """For each message what the row itself says of its supervision (`weight`, `train`); None: nothing. May be empty:
    nothing for any."""
    prompt_messages: int = 0
    """How many of the first messages are a prompt, whose assistant turns are there to be read and not learned."""


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), f"a {type(value).__name__}")
