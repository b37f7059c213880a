from __future__ import annotations

from pathlib import Path

import pytest
from support import chat_templates as templates
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sft_cli.data.formats import Chat
from sft_cli.data.raw import BadRow
from sft_cli.data.template import ChatRenderer, read_template
from sft_cli.errors import DataError, ModelError

BUILTIN = Path(__file__).parents[3] / "sft_cli" / "data" / "builtin" / "tiny-hybrid"
USER, ANSWER = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "One."}


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN)
    tokenizer.add_tokens(templates.SPECIAL_TOKENS, special_tokens=True)
    return tokenizer


def chat(*messages: dict[str, object], tools: list[dict[str, object]] | None = None) -> Chat:
    return Chat(list(messages), tools, "messages")


@pytest.mark.parametrize("template", [None, *templates.EXPECTED])
def test_the_text_is_that_of_apply_chat_template(tokenizer: PreTrainedTokenizerFast, template: str | None) -> None:
    rendering = ChatRenderer(tokenizer, template, "test").render(chat(USER, ANSWER))
    assert rendering.text == tokenizer.apply_chat_template([USER, ANSWER], chat_template=template, tokenize=False)


def test_odd_messages_reach_the_template_as_they_would_in_transformers(tokenizer: PreTrainedTokenizerFast) -> None:
    template = templates.CHATML.replace("{{ m.content }}", "{{ m.content }}{{ 'name' in m }}{{ m.content is string }}")
    messages = [USER, {"role": "assistant", "content": "", "name": None}]
    rendering = ChatRenderer(tokenizer, template, "test").render(chat(*messages))
    assert rendering.text == tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)


def test_tools_take_their_own_template_where_there_is_one(tokenizer: PreTrainedTokenizerFast) -> None:
    with_tools = "{{ tools | length }} tools\n" + templates.CHATML
    tokenizer.chat_template = {"default": templates.CHATML, "tool_use": with_tools}
    renderer = ChatRenderer(tokenizer, None, "test")
    assert renderer.render(chat(USER, ANSWER, tools=[{"name": "f"}])).text.startswith("1 tools\n<|im_start|>")
    assert renderer.render(chat(USER, ANSWER)).text.startswith("<|im_start|>")


def test_each_of_two_templates_has_its_own_way_to_mark_turns(tokenizer: PreTrainedTokenizerFast) -> None:
    marked = tokenizer.chat_template
    tokenizer.chat_template = {"default": templates.CHATML, "tool_use": marked}
    renderer = ChatRenderer(tokenizer, None, "test")
    plain, tools = renderer.render(chat(USER, ANSWER)), renderer.render(chat(USER, ANSWER, tools=[{"name": "f"}]))
    assert (plain.marked, tools.marked) == (False, True)
    assert plain.spans == tools.spans


@pytest.mark.parametrize("template", [None, templates.CHATML])
@pytest.mark.parametrize(
    "row",
    [
        chat({"role": "user", "content": "x <|im_start|>assistant\ny"}, ANSWER),
        chat(USER, {"role": "assistant", "content": "x<|im_end|>"}),
        chat(USER, ANSWER | {"tool_calls": [{"function": {"name": "f", "arguments": {"<|im_end|>": 1}}}]}),
        chat(USER, ANSWER, tools=[{"name": "f", "description": "<|im_start|>"}]),
    ],
)
def test_a_turn_token_in_the_text_is_a_bad_row(
    tokenizer: PreTrainedTokenizerFast, template: str | None, row: Chat
) -> None:
    with pytest.raises(BadRow, match=r"the row's own text holds <\|im_(start|end)\|>"):
        ChatRenderer(tokenizer, template, "test").render(row)


def test_other_special_tokens_in_the_text_are_text(tokenizer: PreTrainedTokenizerFast) -> None:
    ChatRenderer(tokenizer, None, "test").render(chat({"role": "user", "content": "<|endoftext|> <|eot_id|>"}, ANSWER))


@pytest.mark.parametrize(
    ("template", "messages", "what"),
    [
        (templates.MISTRAL, [USER, USER], "roles must alternate"),
        (templates.GEMMA, [{"role": "system", "content": "Be kind."}, USER], "System role not supported"),
        (
            "{% for m in messages %}{{ '<s>' + m.role + m.content }}{% endfor %}",
            [{"role": "user", "content": None}],
            "",
        ),
        ("{% for m in messages %}<s>{{ m.role }}{{ m.content }}{{ m.x.y }}{% endfor %}", [USER], "no attribute 'x'"),
    ],
)
def test_a_template_that_raises_on_a_row(
    tokenizer: PreTrainedTokenizerFast, template: str, messages: list[dict[str, object]], what: str
) -> None:
    if "m.x.y" in template:
        template = template.replace("{{ m.x.y }}", "{% if m.content == 'Why?' %}{{ m.x.y }}{% endif %}")
    renderer = ChatRenderer(tokenizer, template, "test")
    with pytest.raises(BadRow, match="the chat template raises: ") as caught:
        renderer.render(chat(*messages))
    assert what in str(caught.value)
    assert "model.chat_template (test)" in caught.value.fix


@pytest.mark.parametrize(
    ("template", "what"),
    [
        ("{% for m in messages %}{{ m.content }", "can't render a plain chat"),
        ("{% for m in messages %}{{ m.content }}", "can't render a plain chat"),
        ("{{ messages[0].content }}", "does not write each message once"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "writes nothing before assistant turns"),
    ],
)
def test_a_template_that_can_not_be_used_is_an_error_of_the_model(
    tokenizer: PreTrainedTokenizerFast, template: str, what: str
) -> None:
    with pytest.raises(ModelError, match=what) as caught:
        ChatRenderer(tokenizer, template, "mine.jinja")
    assert caught.value.exit_code == 2
    assert caught.value.where == "model.chat_template (mine.jinja)"
    assert caught.value.fix


@pytest.mark.parametrize("template", ["{{ raise_exception('never') }}", "{{ messages.nothing.more }}"])
def test_a_template_that_refuses_every_chat_is_an_error_of_the_data(
    tokenizer: PreTrainedTokenizerFast, template: str
) -> None:
    with pytest.raises(DataError, match="can't render a plain chat of two rounds") as caught:
        ChatRenderer(tokenizer, template, "mine.jinja")
    assert caught.value.exit_code == 3
    assert caught.value.where == "model.chat_template (mine.jinja)"
    assert caught.value.fix


def test_a_template_that_wants_a_system_message_gets_one_to_learn_from(tokenizer: PreTrainedTokenizerFast) -> None:
    template = (
        "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}" + templates.CHATML
    )
    renderer = ChatRenderer(tokenizer, template, "test")
    rendering = renderer.render(chat({"role": "system", "content": "Be kind."}, USER, ANSWER))
    assert [rendering.text[start:end] for start, end in rendering.spans] == ["One.<|im_end|>"]


@pytest.mark.parametrize("templates_of", [None, "", {}, {"rag": templates.CHATML}])
def test_no_template(tokenizer: PreTrainedTokenizerFast, templates_of: object) -> None:
    tokenizer.chat_template = templates_of
    with pytest.raises(ModelError, match="chat template") as caught:
        ChatRenderer(tokenizer, None, "folder")
    assert "model.chat_template" in caught.value.fix


def test_read_template(tmp_path: Path) -> None:
    file = tmp_path / "a.jinja"
    file.write_bytes(b"\xef\xbb\xbf{{ x }}")
    assert read_template(str(file)) == "{{ x }}"
    assert read_template(None) is None
    file.write_bytes(b"\xff")
    for path in (file, tmp_path / "missing.jinja"):
        with pytest.raises(ModelError, match="can't be read") as caught:
            read_template(str(path))
        assert str(path) in caught.value.where
