"""What a message itself says of its supervision: `weight` 0 or 1 (OpenAI's), `train` false or true."""

from __future__ import annotations

from collections.abc import Sequence

from sft_cli.data.formats.chat import Message
from sft_cli.data.raw import BadRow

KEYS = ("weight", "train")
_FIX = "Write `weight` 0 or 1, or `train` false or true, on assistant messages."


def read_override(message: Message, number: int, *, is_assistant: bool) -> bool | None:
    """Whether to train on a message; None where it says nothing.

    Args:
        message: as the row has it.
        number: its place in the row, from 1.
        is_assistant: only the assistant's turns can be supervised one by one.

    Raises:
        BadRow: another value, two values that differ, or a message to train on that is not the assistant's.
    """
    said = {key: message[key] for key in KEYS if message.get(key) is not None}
    for key, value in said.items():
        # 0.5 would need a loss that weighs tokens; the rules of `loss` weigh every supervised token alike.
        if value not in (0, 1):
            raise BadRow("a weight that is not 0 or 1", f"message {number} has {value!r} under `{key}`", _FIX)
    choices = {bool(value) for value in said.values()}
    if len(choices) > 1:
        raise BadRow("`weight` and `train` differ", f"message {number}", _FIX)
    choice = choices.pop() if choices else None
    if choice and not is_assistant:
        where = f"message {number} is marked to be trained on"
        raise BadRow("a message to train on that is not the assistant's", where, _FIX)
    return choice


def without_override(message: Message) -> Message:
    """The message as a template should see it."""
    if not any(key in message for key in KEYS):
        return message
    return {key: value for key, value in message.items() if key not in KEYS}


def said(trained: Sequence[bool | None]) -> tuple[bool | None, ...]:
    """What the messages of a row say, as `Chat` has it: empty where none says anything."""
    return tuple(trained) if any(choice is not None for choice in trained) else ()
