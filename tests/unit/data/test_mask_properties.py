"""Random conversations: what is supervised decodes to exactly what the assistant wrote, terminators included."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import chat_templates as templates
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sft_cli.data.chat import Supervise, encode
from sft_cli.data.formats import to_chat
from sft_cli.data.template import ChatRenderer

DATA = Path(__file__).parents[3] / "sft_cli" / "data"
CHATML = (DATA / "chatml.jinja").read_text()
END = "<|im_end|>"
Message = dict[str, Any]


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    loaded = AutoTokenizer.from_pretrained(DATA / "builtin" / "tiny-hybrid")
    loaded.add_tokens(templates.SPECIAL_TOKENS, special_tokens=True)
    return loaded


@cache
def renderer(template: str) -> ChatRenderer:
    return ChatRenderer(tokenizer(), template, "test")


def written_chatml(message: Message, _: bool) -> str:
    thought = f"<think>\n{message['reasoning_content']}\n</think>\n\n" if message.get("reasoning_content") else ""
    calls = [
        f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, '
        f'"arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'
        for name, arguments in calls_of(message)
    ]
    pieces = [message["content"]] if message["content"] else []
    return thought + "\n".join([*pieces, *calls]) + END


def written_qwen3_8(message: Message, _: bool) -> str:
    thought = f"<think>\n{(message.get('reasoning_content') or '').strip()}\n</think>\n\n"
    return thought + (message["content"] or "").strip() + xml_calls(message) + END


def written_qwen3_5(message: Message, after_last_user: bool) -> str:
    thought = f"<think>\n{(message.get('reasoning_content') or '').strip()}\n</think>\n\n" if after_last_user else ""
    return thought + (message["content"] or "").strip() + xml_calls(message) + END


def written_llama3(message: Message, _: bool) -> str:
    return message["content"].strip() + "<|eot_id|>"


def calls_of(message: Message) -> list[tuple[str, dict[str, Any]]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]


def xml_calls(message: Message) -> str:
    calls = [
        f"<tool_call>\n<function={name}>\n"
        + "".join(
            f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
            for key, value in arguments.items()
        )
        + "</function>\n</tool_call>"
        for name, arguments in calls_of(message)
    ]
    return ("\n\n" if calls and message["content"] else "") + "\n".join(calls)


WRITTEN: dict[str, tuple[str, Callable[[Message, bool], str], bool]] = {
    "chatml": (CHATML, written_chatml, True),
    "qwen3.5": (templates.QWEN3_5, written_qwen3_5, True),
    "qwen3.8": (templates.QWEN3_8, written_qwen3_8, True),
    "llama3": (templates.LLAMA3, written_llama3, False),
}
"""Template, what the assistant's turn is (the message, whether it follows the last user's), whether tools are known."""

# The tokenizer composes characters, so they are composed here already. NUL and control tokens make a bad row. A newline
# at the start would share a token with the header's.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0<|[]"), max_size=40).map(
    lambda text: normalize("NFC", text).lstrip()
)
names = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
arguments = st.dictionaries(names, texts | st.integers() | st.booleans(), max_size=3)
calls = st.builds(
    lambda name, given: {"type": "function", "function": {"name": name, "arguments": given}}, names, arguments
)


@st.composite
def conversations(draw: st.DrawFn, *, tools: bool) -> list[Message]:
    messages: list[Message] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(texts)})
    for _ in range(draw(st.integers(1, 4))):
        messages.append({"role": "user", "content": draw(texts)})
        answer: Message = {"role": "assistant", "content": draw(texts)}
        if draw(st.booleans()) and tools:
            answer["reasoning_content"] = draw(texts.map(str.strip).filter(bool))
        if draw(st.booleans()) and tools:
            called = draw(st.lists(calls, min_size=1, max_size=2))
            messages.append(
                answer | {"content": draw(st.sampled_from([None, answer["content"]])), "tool_calls": called}
            )
            messages += [{"role": "tool", "content": draw(texts)} for _ in called]
            answer = {"role": "assistant", "content": draw(texts)}
        messages.append(answer)
    return messages


def runs(row: dict[str, Any], template: str, supervise: Supervise) -> list[str]:
    """Each run of supervised tokens, decoded."""
    rendering = renderer(template).render(to_chat(row, "auto"))
    (chat,) = encode(tokenizer(), [rendering], supervise, renderer(template).turn_tokens)
    pairs = zip(chat.token_ids.tolist(), chat.supervised.tolist(), strict=True)
    decode = tokenizer().decode
    return [decode([token for token, _ in run]) for flag, run in groupby(pairs, key=lambda pair: pair[1]) if flag]


def turns(messages: list[Message], written: Callable[[Message, bool], str]) -> list[str]:
    last_user = max(index for index, message in enumerate(messages) if message["role"] == "user")
    return [
        written(message, index > last_user) for index, message in enumerate(messages) if message["role"] == "assistant"
    ]


@pytest.mark.parametrize("style", WRITTEN)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_supervised_tokens_are_what_the_assistant_wrote(style: str, data: st.DataObject) -> None:
    template, written, tools = WRITTEN[style]
    messages = data.draw(conversations(tools=tools))
    expected = turns(messages, written)
    assert runs({"messages": messages}, template, "assistant") == expected
    assert runs({"messages": messages}, template, "last_assistant") == expected[-1:]


@pytest.mark.parametrize("style", WRITTEN)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_messages_that_say_whether_to_train_on_them(style: str, data: st.DataObject) -> None:
    template, written, tools = WRITTEN[style]
    messages = data.draw(conversations(tools=tools))
    said = [data.draw(st.sampled_from([None, 0, 1])) for message in messages if message["role"] == "assistant"]
    weights = iter(said)
    row = {"messages": [m | {"weight": next(weights)} if m["role"] == "assistant" else m for m in messages]}
    expected = turns(messages, written)
    assert runs(row, template, "assistant") == [
        text for text, weight in zip(expected, said, strict=True) if weight != 0
    ]
    assert runs(row, template, "last_assistant") == [
        text
        for index, (text, weight) in enumerate(zip(expected, said, strict=True))
        if weight == 1 or (weight is None and index == len(expected) - 1)
    ]
    rendered = renderer(template).render(to_chat(row, "auto"))
    left_out = "".join(text for text, weight in zip(expected, said, strict=True) if weight == 0)
    assert len("".join(runs(row, template, "all"))) == len(rendered.text) - len(left_out)


@pytest.mark.parametrize("style", ["chatml", "qwen3.5", "qwen3.8"])
@settings(max_examples=40, deadline=None)
@given(thought=texts.map(str.strip).filter(bool), answer=texts)
def test_inline_reasoning_is_written_once_as_reasoning(style: str, thought: str, answer: str) -> None:
    template, written, _ = WRITTEN[style]
    inline = {"role": "assistant", "content": f"<think>\n{thought}\n</think>\n\n{answer}"}
    apart = {"role": "assistant", "reasoning_content": thought, "content": answer}
    asked = {"role": "user", "content": "Why?"}
    assert runs({"messages": [asked, inline]}, template, "assistant") == [written(apart, True)]
