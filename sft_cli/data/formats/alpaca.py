"""Alpaca's shape: {"instruction": ..., "input": ..., "output": ..., "system": ..., "history": [[..., ...]]}."""

from __future__ import annotations

from typing import Any

from sft_cli.data.formats.chat import Chat, Message
from sft_cli.data.formats.columns import optional_text_of, parsed_list, system_message, text_of
from sft_cli.data.formats.tools import read_tools
from sft_cli.data.raw import BadRow

OUTPUTS = ("output", "response")
"""Where the answer stands; Dolly calls it `response`, and the input `context`."""


def from_alpaca(row: dict[str, Any]) -> Chat:
    """A chat of the history's rounds and the instruction's. The input follows its instruction on a line of its own.

    Raises:
        BadRow: a column that is not text, or a history that is not a list of pairs.
    """
    asked = [text_of(row, "instruction"), optional_text_of(row, "input") or optional_text_of(row, "context")]
    answer = next((column for column in OUTPUTS if row.get(column) is not None), OUTPUTS[0])
    rounds = [*_history(row), ["\n".join(filter(None, asked)), text_of(row, answer)]]
    messages = system_message(row)
    for question, reply in rounds:
        messages += _round(question, reply)
    return Chat(messages, read_tools(row, wrap=True), "alpaca")


def _round(question: str, reply: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]


def _history(row: dict[str, Any]) -> list[list[str]]:
    history = parsed_list(row.get("history"))
    if not history:
        return []
    if not isinstance(history, list) or not all(_is_pair(pair) for pair in history):
        raise BadRow(
            "a history that is not a list of pairs",
            fix='Write "history": [["question", "answer"], ...], or remove the column.',
        )
    return history


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
