"""What templates take is asked of them, and rows reach them so."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import chat_templates as templates
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sft_cli.data.formats import to_chat
from sft_cli.data.raw import BadRow
from sft_cli.data.template import ChatRenderer

DATA = Path(__file__).parents[3] / "sft_cli" / "data"
CHATML = (DATA / "chatml.jinja").read_text()
ARGUMENTS = {"city": "Köln", "days": 2}
AS_TEXT = '{"city":"Köln",  "days":2}'
TEXT_ONLY = templates.CHATML.replace(
    "{{ m.content }}",
    "{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name + ' ' + c.function.arguments }}]{% endfor %}",
)
DOUBLING = TEXT_ONLY.replace("+ ' ' + c.function.arguments", "}} {{ c.function.arguments | tojson")
PYTHONS = TEXT_ONLY.replace("+ ' ' + c.function.arguments", "}} {{ c.function.arguments")


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(DATA / "builtin" / "tiny-hybrid")


def render(template: str, *messages: dict[str, Any], user: Any = "Why?") -> str:
    chat = to_chat({"messages": [{"role": "user", "content": user}, *messages]}, "auto")
    return ChatRenderer(tokenizer(), template, "test").render(chat).text


def call(arguments: Any, content: str | None = None) -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    return {"role": "assistant", "content": content, "tool_calls": [{"type": "function", "function": function}]}


@pytest.mark.parametrize(
    ("template", "of_text", "of_object"),
    [
        (CHATML, AS_TEXT, json.dumps(ARGUMENTS, ensure_ascii=False)),
        (templates.QWEN3, AS_TEXT, json.dumps(ARGUMENTS, ensure_ascii=False)),
        (TEXT_ONLY, AS_TEXT, json.dumps(ARGUMENTS, ensure_ascii=False)),
        (PYTHONS, AS_TEXT, json.dumps(ARGUMENTS, ensure_ascii=False)),
        (DOUBLING, *[json.dumps(ARGUMENTS, ensure_ascii=False)] * 2),
        (templates.QWEN3_5, *["<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n2\n</parameter>"] * 2),
        (templates.QWEN3_8, *["<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n2\n</parameter>"] * 2),
    ],
    ids=["chatml", "qwen3", "text only", "python's", "doubling", "qwen3.5", "qwen3.8"],
)
def test_arguments_are_written_once_and_as_json(template: str, of_text: str, of_object: str) -> None:
    assert of_text in render(template, call(AS_TEXT))
    assert of_object in render(template, call(ARGUMENTS))


@pytest.mark.parametrize("template", [CHATML, templates.QWEN3, templates.QWEN3_5, templates.QWEN3_8, TEXT_ONLY])
def test_null_beside_calls_is_an_empty_text(template: str) -> None:
    assert render(template, call(ARGUMENTS)) == render(template, call(ARGUMENTS, ""))
    assert "None" not in render(template, call(ARGUMENTS))


@pytest.mark.parametrize("template", [CHATML, templates.CHATML, templates.LLAMA3, templates.QWEN3, templates.QWEN3_8])
def test_text_parts_are_written_as_their_text(template: str) -> None:
    parts = [{"type": "text", "text": "One. "}, {"type": "text", "text": "Two."}]
    answers = [{"role": "assistant", "content": content} for content in ("One. Two.", parts)]
    assert render(template, answers[0], user="One. Two.") == render(template, answers[1], user=parts)


def test_a_template_that_takes_parts_gets_them() -> None:
    lines = "{% for p in m.content %}{{ p.text }}/{% endfor %}"
    either = "{% if m.content is string %}{{ m.content }}{% else %}" + lines + "{% endif %}"
    template = templates.CHATML.replace("{{ m.content }}", either)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\na/b/<" in render(template, {"role": "assistant", "content": "c"}, user=parts)


@pytest.mark.parametrize("result", [{"sun": True}, [1, 2], [{"sun": True}]])
@pytest.mark.parametrize("template", [CHATML, templates.QWEN3])
def test_a_tools_result_that_is_no_text_is_written_as_json(template: str, result: Any) -> None:
    text = render(template, call(ARGUMENTS), {"role": "tool", "content": result}, {"role": "assistant", "content": "a"})
    assert f"<tool_response>\n{json.dumps(result)}\n</tool_response>" in text


@pytest.mark.parametrize("template", [CHATML, templates.QWEN3, templates.QWEN3_5, templates.QWEN3_8])
@pytest.mark.parametrize("as_parts", [False, True])
def test_inline_reasoning_becomes_reasoning_content(template: str, as_parts: bool) -> None:
    inline: Any = "<think>\nHm.\n</think>\n\nYes."
    inline = [{"type": "text", "text": inline}] if as_parts else inline
    text = render(template, {"role": "assistant", "content": inline})
    assert text == render(template, {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."})
    assert text.count("<think>") == 1


@pytest.mark.parametrize("template", [templates.QWEN3, templates.QWEN3_5])
@pytest.mark.parametrize("answer", ["Yes.", "    indented", "One </think> two."])
def test_a_template_that_takes_inline_reasoning_gets_it_as_it_is(template: str, answer: str) -> None:
    inline = {"role": "assistant", "content": f"<think>\nHm.\n</think>\n\n{answer}"}
    question = {"role": "user", "content": "Why?"}
    expected = tokenizer().apply_chat_template([question, inline], chat_template=template, tokenize=False)
    assert render(template, inline) == expected


def test_text_that_a_template_cuts_away_with_inline_reasoning_is_noticed() -> None:
    def changed(answer: str) -> tuple[str, ...]:
        chat = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": answer}]
        return ChatRenderer(tokenizer(), templates.QWEN3, "test").render(to_chat({"messages": chat}, "auto")).changed

    assert changed("<think>\n\nHm.</think>Yes.") == ()
    assert changed("<think>Hm.</think>One </think> two.") == ("text changed or left out by the chat template",)


@pytest.mark.parametrize("template", [CHATML, templates.CHATML_THINKING])
def test_moved_reasoning_keeps_the_indentation_behind_it(template: str) -> None:
    inline = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\n    x = 1"}
    assert "<think>\nHm.\n</think>\n\n    x = 1<" in render(template, inline)


def test_inline_reasoning_stays_text_where_the_template_knows_no_other() -> None:
    assert "assistant\n<think>Hm.</think>Yes.<" in render(
        templates.CHATML, {"role": "assistant", "content": "<think>Hm.</think>Yes."}
    )


@pytest.mark.parametrize("content", ["Say <think>x</think>.", "<think>never closed"])
def test_a_think_tag_elsewhere_is_text(content: str) -> None:
    assert content in render(CHATML, {"role": "assistant", "content": content})


@pytest.mark.parametrize(
    ("template", "lost"),
    [(CHATML, False), (templates.QWEN3, True), (templates.QWEN3_5, True), (templates.QWEN3_8, False),
     (templates.CHATML_THINKING, True), (templates.LLAMA3, True)],
)  # fmt: skip
def test_reasoning_that_a_template_drops_is_noticed(template: str, lost: bool) -> None:
    tokens = tokenizer()
    tokens.add_tokens(templates.SPECIAL_TOKENS, special_tokens=True)
    thoughtful = [
        message
        for thought in ("First thought.", "Second thought.")
        for message in (
            {"role": "user", "content": "Why? First thought. Second thought."},
            {"role": "assistant", "content": "So.", "reasoning_content": thought},
        )
    ]
    rendering = ChatRenderer(tokens, template, "test").render(to_chat({"messages": thoughtful}, "auto"))
    assert rendering.changed == (("reasoning left out by the chat template",) if lost else ())


def test_reasoning_outside_of_the_markers_is_not_lost() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' %}<think>{{ m.reasoning_content }}</think>"
        "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
        "{% else %}{{ m.content }}<|im_end|>{% endif %}"
        "\n{% endfor %}"
    )
    answer = {"role": "assistant", "content": "So.", "reasoning_content": "Hm."}
    chat = to_chat({"messages": [{"role": "user", "content": "Why?"}, answer] * 2}, "auto")
    assert ChatRenderer(tokenizer(), template, "test").render(chat).changed == ()


LISTING = "{% if tools %}{{ tools[0].function.name }}{% endif %}" + templates.CHATML
MARKED = (
    "{% if tools %}{{ tools[0].function.name }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}CALLS"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
)


@pytest.mark.parametrize("template", [LISTING, MARKED.replace("CALLS", "")], ids=["without markers", "with markers"])
def test_a_dropped_call_is_noticed_though_the_list_of_tools_names_it(template: str) -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    messages = [{"role": "user", "content": "Why?"}, call(ARGUMENTS, "So."), {"role": "assistant", "content": "Ho."}]
    with pytest.raises(BadRow, match="a tool call that the chat template leaves out: the call of weather"):
        ChatRenderer(tokenizer(), template, "test").render(to_chat({"messages": messages, "tools": tools}, "auto"))


def test_a_call_behind_the_markers_is_not_dropped() -> None:
    template = MARKED.replace("CALLS", "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}")
    messages = [{"role": "user", "content": "Why?"}, call(ARGUMENTS, "So."), {"role": "assistant", "content": "Ho."}]
    assert ChatRenderer(tokenizer(), template, "test").render(to_chat({"messages": messages}, "auto")).changed == ()


def test_changed_texts_and_hidden_tools_are_noticed() -> None:
    shouting = templates.CHATML.replace("{{ m.content }}", "{{ m.content | replace('so', 'SO') }}")
    renderer = ChatRenderer(tokenizer(), shouting, "test")

    def changed(user: str, answer: str, tools: list[Any] | None = None) -> tuple[str, ...]:
        messages = [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
        return renderer.render(to_chat({"messages": messages, "tools": tools}, "auto")).changed

    text, tools = "text changed or left out by the chat template", "tools left out by the chat template"
    assert changed(" hi ", "ho") == ()
    assert changed("so", "ho") == changed("hi", "so") == (text,)
    assert changed("hi", "ho", [{"type": "function", "function": {"name": "weather"}}]) == (tools,)
