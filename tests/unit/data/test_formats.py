from __future__ import annotations

import json
from typing import Any

import pytest

from sft_cli.data.formats import to_chat
from sft_cli.data.raw import BadRow

WEATHER = {"name": "weather", "description": "", "parameters": {"type": "object", "properties": {}}}


def test_messages_pass_through_untouched() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "x"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": {"ok": True}},
    ]
    chat = to_chat({"messages": messages, "id": 3}, "auto")
    assert (chat.messages, chat.tools, chat.format) == (messages, None, "messages")


def test_sharegpt_speakers() -> None:
    speakers = ["system", "human", "gpt", "user", "assistant", "human", "chatgpt", "observation", "bot", "tool"]
    roles = ["system", "user", "assistant", "user", "assistant", "user", "assistant", "tool", "assistant", "tool"]
    chat = to_chat({"conversations": [{"from": speaker, "value": speaker} for speaker in speakers]}, "auto")
    assert chat.format == "sharegpt"
    assert [(message["role"], message["content"]) for message in chat.messages] == list(
        zip(roles, speakers, strict=True)
    )


def test_a_sharegpt_system_column_becomes_the_first_message_once() -> None:
    turns = [{"from": "human", "value": "hi"}]
    assert to_chat({"system": "Be kind.", "conversations": turns}, "auto").messages[0]["content"] == "Be kind."
    own = [{"from": "system", "value": "Own."}, *turns]
    assert [m["content"] for m in to_chat({"system": "Be kind.", "conversations": own}, "auto").messages] == [
        "Own.",
        "hi",
    ]


@pytest.mark.parametrize("several", [False, True])
def test_sharegpt_function_calls(several: bool) -> None:
    call = {"name": "weather", "arguments": {"city": "Rome"}}
    value = json.dumps([call, call] if several else call)
    message = to_chat({"conversations": [{"from": "function_call", "value": value}]}, "sharegpt").messages[0]
    assert message == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": call}] * (2 if several else 1),
    }


@pytest.mark.parametrize("written", [WEATHER, {"type": "function", "function": WEATHER}])
@pytest.mark.parametrize("as_text", [False, True])
def test_tools_of_sharegpt_rows(written: dict[str, Any], as_text: bool) -> None:
    tools = json.dumps([written]) if as_text else [written]
    row = {"conversations": [{"from": "human", "value": "hi"}], "tools": tools}
    assert to_chat(row, "auto").tools == [{"type": "function", "function": WEATHER}]


def test_tools_of_messages_rows_are_parsed_and_left_alone() -> None:
    row = {"messages": [{"role": "user", "content": "hi"}], "tools": json.dumps([WEATHER])}
    assert to_chat(row, "auto").tools == [WEATHER]
    assert to_chat(row | {"tools": [WEATHER]}, "auto").tools == [WEATHER]


@pytest.mark.parametrize("tools", [None, [], "", " ", "[]"])
def test_no_tools(tools: object) -> None:
    assert to_chat({"messages": [{"role": "user", "content": "hi"}], "tools": tools}, "auto").tools is None


USER = {"role": "user", "content": "hi"}
BAD_ROWS = [
    ({"prompt": "a", "answer": "b"}, "unknown shape: the row has the columns prompt, answer"),
    ({}, "unknown shape"),
    ([USER], "not an object: a row is a list"),
    ("hi", "not an object: a row is a text"),
    (None, "not an object: a row is null"),
    ({"messages": []}, "no messages"),
    ({"messages": None}, "unknown shape: null under `messages`"),
    ({"messages": "hi"}, "unknown shape: a text under `messages`"),
    ({"messages": ["hi"]}, "unknown shape: item 1 of `messages` is a text"),
    ({"messages": [USER, {"content": "hi"}]}, "a message without a role: message 2"),
    ({"messages": [{"role": 3, "content": "hi"}]}, "a message without a role"),
    ({"messages": [{"role": "user", "content": 3}]}, "content is not text: message 1 has a number"),
    ({"messages": [{"role": "user", "content": False}]}, "content is not text: message 1 has true or false"),
    ({"messages": [USER], "tools": "{"}, "tools are not JSON"),
    ({"messages": [USER], "tools": 3}, "tools are not a list"),
    ({"messages": [USER], "tools": ["f"]}, "tools are not a list"),
    ({"conversations": []}, "no messages"),
    ({"conversations": [{"from": "alien", "value": "hi"}]}, "unknown speaker: turn 1 is from 'alien'"),
    ({"conversations": [{"from": ["x"], "value": "hi"}]}, "unknown speaker"),
    ({"conversations": [{"from": "human", "value": None}]}, "content is not text: turn 1 has null"),
    ({"conversations": [{"from": "function_call", "value": "f()"}]}, "a function call that is not JSON: turn 1"),
    ({"conversations": [{"from": "function_call", "value": "[]"}]}, "a function call without a name"),
    ({"conversations": [{"from": "function_call", "value": "3"}]}, "a function call without a name"),
]


@pytest.mark.parametrize(("row", "what"), BAD_ROWS)
def test_bad_rows_say_why(row: object, what: str) -> None:
    with pytest.raises(BadRow) as caught:
        to_chat(row, "auto")
    assert str(caught.value).startswith(what)


def test_an_unknown_shape_names_the_known_ones() -> None:
    with pytest.raises(BadRow) as caught:
        to_chat({"text": "hi"}, "auto")
    assert '"messages"' in caught.value.fix
    assert '"conversations"' in caught.value.fix


@pytest.mark.parametrize("format", ["auto", "sharegpt"])
def test_messages_under_the_column_of_sharegpt(format: str) -> None:
    chat = to_chat({"conversations": [USER]}, format)
    assert (chat.messages, chat.format) == ([USER], "messages")


def test_a_named_format_is_insisted_on() -> None:
    with pytest.raises(BadRow, match="no column `conversations`"):
        to_chat({"messages": [USER]}, "sharegpt")
    with pytest.raises(BadRow, match="no column `messages`"):
        to_chat({"conversations": [{"from": "human", "value": "hi"}]}, "messages")


def test_all_fixes_are_there() -> None:
    for row, _ in BAD_ROWS:
        with pytest.raises(BadRow) as caught:
            to_chat(row, "auto")
        assert caught.value.fix, row


def read(message: dict[str, Any], **columns: Any) -> dict[str, Any]:
    return to_chat({"messages": [USER, {"role": "assistant", **message}], **columns}, "auto").messages[1]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (["a", "b"], {"content": "ab"}),
        ([], {"content": ""}),
        ([{"type": "text", "value": "a"}], {"content": "a"}),
        ([{"type": "output_text", "text": "a", "annotations": []}], {"content": "a"}),
        ([{"type": "text", "text": "a"}], {"content": [{"type": "text", "text": "a"}]}),
        (
            [{"type": "reasoning", "value": "r"}, {"type": "text", "value": "a"}],
            {"reasoning_content": "r", "content": "a"},
        ),
        (
            [
                {"type": "reasoning", "value": "r"},
                {"type": "tool_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
            ],
            {
                "reasoning_content": "r",
                "content": "",
                "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
            },
        ),
    ],
)
def test_typed_parts(content: list[Any], expected: dict[str, Any]) -> None:
    assert read({"content": content}) == {"role": "assistant"} | expected


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_stands_where_templates_look_for_it(key: str) -> None:
    assert read({"content": "a", key: "r"})["reasoning_content"] == "r"
    assert read({"content": None, key: "r"})["reasoning_content"] == "r"


def test_older_function_calls() -> None:
    rows = [
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "3"},
    ]
    _, call, result = to_chat({"messages": rows}, "auto").messages
    assert call["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert result == {"role": "tool", "name": "f", "content": "3"}


def test_messages_and_calls_that_are_json_text() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    message = {"role": "assistant", "content": None, "tool_calls": json.dumps([call])}
    chat = to_chat({"messages": json.dumps([USER, message])}, "auto")
    assert chat.messages == [USER, message | {"tool_calls": [call]}]


def test_what_messages_say_of_their_supervision() -> None:
    said = [{}, {"weight": 0}, {"weight": 1.0}, {"train": False}, {"train": True, "weight": 1}, {"weight": None}]
    messages = [USER | {"train": False}, *({"role": "assistant", "content": "a"} | one for one in said)]
    chat = to_chat({"messages": messages}, "auto")
    assert chat.trained == (False, None, False, True, False, True, None)
    assert chat.messages == [USER, *[{"role": "assistant", "content": "a"}] * 6]
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "a", "weight": 0}]
    assert to_chat({"conversations": turns, "system": "s"}, "auto").trained == (None, None, False)
    assert to_chat({"messages": [USER]}, "auto").trained == ()


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ({"content": None}, "content is null: message 2 (assistant) has nothing beside it"),
        ({}, "content is null"),
        ({"content": None, "tool_calls": []}, "content is null"),
        ({"content": {"a": 1}}, "content is not text: message 2 has an object"),
        ({"content": [3]}, "content is not text: message 2 has a number among its parts"),
        ({"content": [{"text": "a"}]}, "content is not text: message 2 has an object without `type`"),
        ({"content": [{"type": "text", "text": None}]}, "content is not text: message 2 has null"),
        ({"content": [{"type": "image_url", "image_url": {}}]}, "a part that is not text (image_url): message 2"),
        ({"content": [{"type": "input_audio"}]}, "a part that is not text (input_audio)"),
        ({"content": [{"type": "video"}]}, "a part that is not text (video)"),
        ({"content": [{"type": "tool_use", "name": "f"}]}, "a part of an unknown type (tool_use)"),
        ({"content": "a", "reasoning_content": 3}, "reasoning is not text"),
        ({"tool_calls": "f()"}, "tool calls are not a list: message 2 has a text"),
        ({"tool_calls": [{"function": {"arguments": {}}}]}, "a function call without a name: message 2"),
        ({"tool_calls": ["f"]}, "a function call without a name"),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": '{"x": '}}]},
            "tool call arguments that are not JSON: message 2, the call of f: ",
        ),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": '{"x": NaN}'}}]},
            "tool call arguments that are not JSON: message 2, the call of f: NaN is no JSON number",
        ),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": '{"x": 1, "x": 2}'}}]},
            'tool call arguments that are not JSON: message 2, the call of f: the key "x" stands twice',
        ),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]},
            "tool call arguments that are not an object: message 2, the call of f: a list",
        ),
        ({"tool_calls": [{"function": {"name": "f", "arguments": 3}}]}, "tool call arguments that are not an object"),
        ({"content": "a", "weight": 0.5}, "a weight that is not 0 or 1: message 2 has 0.5 under `weight`"),
        ({"content": "a", "train": "yes"}, "a weight that is not 0 or 1: message 2 has 'yes' under `train`"),
        ({"content": "a", "weight": 0, "train": True}, "`weight` and `train` differ"),
    ],
)
def test_bad_messages(message: dict[str, Any], what: str) -> None:
    with pytest.raises(BadRow) as caught:
        read(message)
    assert str(caught.value).startswith(what)
    assert caught.value.fix


def test_only_the_assistant_can_be_marked_to_be_trained_on() -> None:
    with pytest.raises(BadRow, match="not the assistant's: message 1"):
        to_chat({"messages": [USER | {"train": True}]}, "auto")
