"""Prompt and completion, as texts or as lists of messages: {"prompt": ..., "completion": ...}."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sft_cli.data.formats.chat import KNOWN_SHAPES, Chat, Message
from sft_cli.data.formats.columns import parsed_list, system_message, text_of, turns_of
from sft_cli.data.formats.messages import read_messages
from sft_cli.data.formats.overrides import said
from sft_cli.data.formats.tools import read_tools
from sft_cli.data.raw import BadRow

PAIRS = (
    ("prompt", "completion"), ("prompt", "response"), ("question", "answer"), ("question", "response"),
    ("query", "response"), ("query", "answer"), ("input", "output"), ("problem", "solution"),
)  # fmt: skip
"""Names of the two columns. The first wins over the others; of the others a row may have one."""


def pairs_in(columns: Collection[str]) -> list[tuple[str, str]]:
    """The pairs of columns that may be prompt and completion; more than one: nobody can tell."""
    found = [pair for pair in PAIRS if pair[0] in columns and pair[1] in columns]
    return found[:1] if found[:1] == [PAIRS[0]] else found


def from_prompt_completion(row: dict[str, Any], columns: Collection[str]) -> Chat:
    """A chat of a prompt and what follows it. The prompt's own assistant turns are not learned.

    Args:
        row: as read.
        columns: those that may be looked at: the row's that are not null, or all of them.

    Raises:
        BadRow: no pair of columns, several pairs, or content that is not text.
    """
    pairs = pairs_in(columns)
    if len(pairs) != 1:
        if not pairs:
            raise BadRow("unknown shape", "no columns `prompt` and `completion`", KNOWN_SHAPES)
        what = f"prompt and completion may be any of {', '.join('/'.join(pair) for pair in pairs)}"
        raise BadRow("unknown shape", what, "Rename two of the columns to `prompt` and `completion`.")
    prompt, completion = pairs[0]
    asked, asked_trained = _messages(row, prompt, "user")
    answered, answered_trained = _messages(row, completion, "assistant")
    system = [] if asked[0].get("role") == "system" else system_message(row)
    trained = (*[None] * len(system), *asked_trained, *answered_trained)
    return Chat(
        messages=[*system, *asked, *answered],
        tools=read_tools(row, wrap=True),
        format="prompt_completion",
        trained=said(trained),
        prompt_messages=len(system) + len(asked),
    )


def _messages(row: dict[str, Any], column: str, role: str) -> tuple[list[Message], tuple[bool | None, ...]]:
    turns = parsed_list(row.get(column))
    if not isinstance(turns, list) or (isinstance(row[column], str) and not _are_messages(turns)):
        return [{"role": role, "content": text_of(row, column)}], (None,)
    return read_messages(turns_of(row, column))


def _are_messages(turns: list[Any]) -> bool:
    """A prompt that is text may itself be a list of JSON; only one of messages is read as such."""
    return bool(turns) and all(isinstance(turn, dict) and "role" in turn for turn in turns)
