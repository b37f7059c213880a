"""Alpaca's rows, and prompts with completions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sft_cli.data.formats import to_chat
from sft_cli.data.raw import BadRow


def said(row: dict[str, Any], format: str = "auto") -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in to_chat(row, format).messages]


@pytest.mark.parametrize("format", ["auto", "alpaca"])
@pytest.mark.parametrize("input_", [{}, {"input": ""}, {"input": None}])
def test_an_instruction_without_an_input(format: str, input_: dict[str, Any]) -> None:
    row = {"instruction": "Name a prime.", **input_, "output": "7"}
    assert said(row, format) == [("user", "Name a prime."), ("assistant", "7")]
    assert to_chat(row, format).format == "alpaca"


def test_an_input_follows_its_instruction_on_a_line_of_its_own() -> None:
    assert said({"instruction": "Add.", "input": "1 2", "output": "3"})[0] == ("user", "Add.\n1 2")
    assert said({"instruction": "", "input": "1 2", "output": "3"})[0] == ("user", "1 2")


def test_the_columns_of_dolly() -> None:
    row = {"instruction": "Who?", "context": "Ada wrote it.", "response": "Ada.", "category": "closed_qa"}
    assert said(row) == [("user", "Who?\nAda wrote it."), ("assistant", "Ada.")]


@pytest.mark.parametrize("as_text", [False, True])
def test_system_and_history_come_first(as_text: bool) -> None:
    history: Any = [["One?", "1"], ["Two?", "2"]]
    history = json.dumps(history) if as_text else history
    row = {"system": "Be short.", "instruction": "Three?", "input": "", "output": "3", "history": history}
    texts = ["Be short.", "One?", "1", "Two?", "2", "Three?", "3"]
    assert said(row) == list(zip(["system", *["user", "assistant"] * 3], texts, strict=True))


@pytest.mark.parametrize("empty", [{}, {"history": []}, {"history": None}, {"system": ""}, {"system": None}])
def test_neither_system_nor_history(empty: dict[str, Any]) -> None:
    assert len(said({"instruction": "a", "output": "b", **empty})) == 2


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"instruction": "a", "output": 3}, "content is not text: a number under `output`"),
        ({"instruction": None, "output": "b"}, "content is not text: null under `instruction`"),
        ({"instruction": "a"}, "content is not text: no column `output`"),
        ({"instruction": "a", "input": ["b"], "output": "c"}, "content is not text: a list under `input`"),
        ({"instruction": "a", "output": "b", "system": 3}, "content is not text: a number under `system`"),
        ({"instruction": "a", "output": "b", "history": "x"}, "a history that is not a list of pairs"),
        ({"instruction": "a", "output": "b", "history": [["x"]]}, "a history that is not a list of pairs"),
        ({"instruction": "a", "output": "b", "history": [["x", None]]}, "a history that is not a list of pairs"),
    ],
)
def test_bad_rows_of_alpaca(row: dict[str, Any], what: str) -> None:
    with pytest.raises(BadRow) as caught:
        to_chat(row, "alpaca")
    assert str(caught.value).startswith(what)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("prompt", "completion"),
    [("prompt", "completion"), ("prompt", "response"), ("question", "answer"), ("query", "response"),
     ("input", "output"), ("problem", "solution")],
)  # fmt: skip
@pytest.mark.parametrize("format", ["auto", "prompt_completion"])
def test_texts_become_a_user_and_an_assistant(format: str, prompt: str, completion: str) -> None:
    chat = to_chat({prompt: "Why?", completion: " Because.", "id": 3}, format)
    assert said({prompt: "Why?", completion: " Because."}, format) == [("user", "Why?"), ("assistant", " Because.")]
    assert (chat.format, chat.prompt_messages, chat.trained) == ("prompt_completion", 1, ())


def test_lists_of_messages_and_what_of_them_is_the_prompt() -> None:
    prompt = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    completion = [{"role": "assistant", "content": "d", "weight": 0}, {"role": "assistant", "content": "e"}]
    chat = to_chat({"system": "s", "prompt": prompt, "completion": completion}, "auto")
    assert [message["content"] for message in chat.messages] == ["s", "a", "b", "c", "d", "e"]
    assert chat.prompt_messages == 4
    assert chat.trained == (None, None, None, None, False, None)
    assert all("weight" not in message for message in chat.messages)
    assert len(to_chat({"prompt": json.dumps(prompt), "completion": "d"}, "auto").messages) == 4


def test_a_prompt_that_happens_to_be_a_list_of_json_is_text() -> None:
    assert said({"prompt": "[1, 2]", "completion": "[3]"}) == [("user", "[1, 2]"), ("assistant", "[3]")]


def test_a_prompt_beside_messages_is_not_looked_at() -> None:
    row = {"prompt": "x", "completion": "y", "messages": [{"role": "user", "content": "hi"}]}
    assert to_chat(row, "auto").format == "messages"
    assert to_chat(row, "prompt_completion").format == "prompt_completion"
    assert to_chat(row | {"messages": None}, "auto").format == "prompt_completion"


def test_names_that_are_not_clear_are_refused_and_the_plain_ones_win() -> None:
    row = {"question": "a", "answer": "b", "input": "c", "output": "d"}
    with pytest.raises(BadRow, match="may be any of question/answer, input/output") as caught:
        to_chat(row, "auto")
    assert "Rename" in caught.value.fix
    assert said(row | {"prompt": "p", "completion": "q"}) == [("user", "p"), ("assistant", "q")]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"prompt": "a"}, "unknown shape: no columns `prompt` and `completion`"),
        ({"prompt": "a", "completion": None}, "content is not text: null under `completion`"),
        ({"prompt": 3, "completion": "b"}, "content is not text: a number under `prompt`"),
        ({"prompt": [], "completion": "b"}, "no messages"),
        ({"prompt": ["a"], "completion": "b"}, "unknown shape: item 1 of `prompt` is a text"),
        ({"prompt": [{"role": "user", "content": 3}], "completion": "b"}, "content is not text: message 1"),
    ],
)
def test_bad_prompts(row: dict[str, Any], what: str) -> None:
    with pytest.raises(BadRow) as caught:
        to_chat(row, "prompt_completion")
    assert str(caught.value).startswith(what)
    assert caught.value.fix
