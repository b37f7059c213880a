from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment
from support import chat_templates as templates

from sft_cli.data.raw import BadRow
from sft_cli.data.turns import Turns, UnknownTurns, learn_turns, probe, turn_tokens

CHAT = [
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "One."},
    {"role": "user", "content": "And?"},
    {"role": "assistant", "content": "Two."},
]


def render(template: str, messages: list[dict[str, str]], *, prompt: bool = False) -> str:
    return Environment(trim_blocks=True, lstrip_blocks=True).from_string(template).render(
        messages=messages, add_generation_prompt=prompt
    )  # fmt: skip


def learn(template: str) -> Turns:
    structure = probe(lambda chat, prompt: render(template, chat, prompt=prompt))
    return learn_turns(structure, templates.SPECIAL_TOKENS)


@pytest.mark.parametrize("template", templates.EXPECTED)
def test_spans_go_from_the_header_through_the_terminator(template: str) -> None:
    text = render(template, CHAT)
    found = [text[start:end] for start, end in learn(template).find(text, 2)]
    assert tuple(found) == templates.EXPECTED[template]


@pytest.mark.parametrize("template", templates.EXPECTED)
def test_a_chat_that_ends_with_the_user(template: str) -> None:
    text = render(template, CHAT[:3])
    (span,) = learn(template).find(text, 1)
    assert text[slice(*span)] == templates.EXPECTED[template][0]


@pytest.mark.parametrize("template", [templates.CHATML, templates.LLAMA3, templates.GEMMA, templates.HARMONY])
def test_neighbouring_and_leading_assistant_turns(template: str) -> None:
    chat = [CHAT[1], CHAT[1], CHAT[0], CHAT[3]]
    text = render(template, chat)
    first, _ = templates.EXPECTED[template]
    found = [text[start:end] for start, end in learn(template).find(text, 3)]
    assert found[:2] == [first, first]


@given(content=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: "<|" not in text))
def test_any_content_is_enclosed_exactly(content: str) -> None:
    chat = [*CHAT[:1], {"role": "assistant", "content": content}, *CHAT[2:]]
    text = render(templates.CHATML, chat)
    turns = learn(templates.CHATML)
    assert [text[start:end] for start, end in turns.find(text, 2)] == [f"{content}<|im_end|>", "Two.<|im_end|>"]


def test_headers() -> None:
    assert learn(templates.CHATML).header == "<|im_start|>assistant\n"
    assert learn(templates.CHATML_THINKING).header == "<|im_start|>assistant\n"
    assert learn(templates.LLAMA3).header == "<|start_header_id|>assistant<|end_header_id|>\n\n"
    assert learn(templates.MISTRAL).header.strip() == "[/INST]"
    assert learn(templates.HARMONY).header == "<|start|>assistant"


def test_another_number_of_turns_is_a_bad_row() -> None:
    merged = render(templates.MISTRAL, CHAT[:2])
    with pytest.raises(BadRow, match="2 assistant messages, but the rendering has 1 times"):
        learn(templates.MISTRAL).find(merged, 2)


def test_a_turn_without_an_end_is_a_bad_row() -> None:
    text = render(templates.CHATML, CHAT).replace("One.<|im_end|>", "One.")
    with pytest.raises(BadRow, match="an assistant turn without an end"):
        learn(templates.CHATML).find(text, 2)


def test_turn_tokens_are_the_special_tokens_of_the_structure() -> None:
    structure = probe(lambda chat, prompt: render(templates.CHATML_THINKING, chat, prompt=prompt))
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    assert turn_tokens(structure, special) == ("<|im_end|>", "<|im_start|>")


@pytest.mark.parametrize(
    ("template", "what"),
    [
        ("{{ messages[0].content }}", "does not write each message once"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "does not write each message once"),
    ],
)
def test_a_template_that_drops_or_doubles_messages(template: str, what: str) -> None:
    with pytest.raises(UnknownTurns, match=what):
        learn(template)


@pytest.mark.parametrize(
    "template",
    ["{% for m in messages %}{{ m.content }}\n{% endfor %}", "{% for m in messages %}<s>{{ m.content }}{% endfor %}"],
)
def test_a_template_without_role_headers(template: str) -> None:
    with pytest.raises(UnknownTurns, match="writes nothing before assistant turns"):
        learn(template)
