from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import chat_templates as templates
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sft_cli.data.chat import EncodedChat, check_text, encode, supervised_tokens
from sft_cli.data.formats import Chat, to_chat
from sft_cli.data.raw import BadRow
from sft_cli.data.rendering import Rendering
from sft_cli.data.template import TEMPLATE_ERRORS, ChatRenderer

SHARED = Path(__file__).parents[4] / "shared"
BUILTIN = Path(__file__).parents[3] / "sft_cli" / "data" / "builtin" / "tiny-hybrid"
CHAT = [
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "One."},
    {"role": "user", "content": "And?"},
    {"role": "assistant", "content": "Two."},
]
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN)
    tokenizer.add_tokens(templates.SPECIAL_TOKENS, special_tokens=True)
    return tokenizer


@pytest.fixture(scope="module")
def bpe_4096() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(SHARED / "tokenizers" / "bpe_4096")


def strip_markers(template: str) -> str:
    return template.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")


def supervised_text(
    tokenizer: PreTrainedTokenizerFast,
    template: str | None,
    messages: list[dict[str, Any]],
    supervise: Any = "assistant",
) -> str:
    renderer = ChatRenderer(tokenizer, template, "test")
    rendering = renderer.render(Chat(messages, None, "messages"))
    (chat,) = encode(tokenizer, [rendering], supervise, renderer.turn_tokens)
    return tokenizer.decode(chat.token_ids[chat.supervised == 1])


@pytest.mark.parametrize("template", templates.EXPECTED)
def test_answers_with_their_terminators_are_supervised(tokenizer: PreTrainedTokenizerFast, template: str) -> None:
    assert supervised_text(tokenizer, template, CHAT) == "".join(templates.EXPECTED[template])


@pytest.mark.parametrize("template", templates.EXPECTED)
def test_the_last_turn_alone(tokenizer: PreTrainedTokenizerFast, template: str) -> None:
    assert supervised_text(tokenizer, template, CHAT, "last_assistant") == templates.EXPECTED[template][1]


@pytest.mark.parametrize("template", [None, *templates.EXPECTED])
def test_everything(tokenizer: PreTrainedTokenizerFast, template: str | None) -> None:
    text = tokenizer.apply_chat_template(CHAT, chat_template=template, tokenize=False)
    assert supervised_text(tokenizer, template, CHAT, "all") == text


def test_markers_decide_where_there_are_any(tokenizer: PreTrainedTokenizerFast) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content[:2] }}{% endgeneration %}{{ m.content[2:3] }}"
        "{% generation %}{{ m.content[3:] }}<|im_end|>{% endgeneration %}"
        "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    )
    chat = [CHAT[0], {"role": "assistant", "content": "1 2 3"}, CHAT[2], {"role": "assistant", "content": "4 5 6"}]
    assert supervised_text(tokenizer, template, chat) == "1  3<|im_end|>4  6<|im_end|>"
    assert supervised_text(tokenizer, template, chat, "last_assistant") == "4  6<|im_end|>"


@pytest.mark.parametrize("answer", ["😀", "a😀b 🇩🇪", "日本\n\n", " x ", "\u2028", "e\u0301", ""])
@pytest.mark.parametrize("template", [None, templates.CHATML])
def test_characters_of_several_tokens(tokenizer: PreTrainedTokenizerFast, template: str | None, answer: str) -> None:
    found = supervised_text(tokenizer, template, [CHAT[0], {"role": "assistant", "content": answer}])
    assert found == tokenizer.decode(tokenizer(f"{answer}<|im_end|>")["input_ids"])


@pytest.mark.parametrize("format", ["messages", "prompt_completion"])
@pytest.mark.parametrize("template", [None, templates.CHATML])
def test_the_answers_of_a_prompt_are_read_and_not_learned(
    tokenizer: PreTrainedTokenizerFast, template: str | None, format: str
) -> None:
    row = {"messages": CHAT} if format == "messages" else {"prompt": CHAT[:3], "completion": CHAT[3:]}
    renderer = ChatRenderer(tokenizer, template, "test")
    rendering = renderer.render(to_chat(row, format))
    (chat,) = encode(tokenizer, [rendering], "assistant", renderer.turn_tokens)
    expected = "Two.<|im_end|>" if format == "prompt_completion" else "One.<|im_end|>Two.<|im_end|>"
    assert tokenizer.decode(chat.token_ids[chat.supervised == 1]) == expected
    (chat,) = encode(tokenizer, [rendering], "all", renderer.turn_tokens)
    assert chat.supervised.all()


def test_turns_that_can_not_be_told_apart_can_not_be_left_out_one_by_one(tokenizer: PreTrainedTokenizerFast) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' and not loop.last %}{{ m.content }}"
        "{% elif m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    )
    renderer = ChatRenderer(tokenizer, template, "test")
    assert len(renderer.render(to_chat({"messages": CHAT}, "auto")).spans) == 1
    weighted = [CHAT[0], CHAT[1] | {"weight": 0}, *CHAT[2:]]
    with pytest.raises(BadRow, match="can't be told apart: 2 assistant messages, but the template marks 1") as caught:
        renderer.render(to_chat({"messages": weighted}, "auto"))
    assert "`weight`" in caught.value.fix


def test_a_beginning_that_both_template_and_tokenizer_write_is_written_once() -> None:
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    begin = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    assert tokenizer("hi")["input_ids"][0] == begin
    for template in ("{{ bos_token }}" + templates.CHATML, templates.CHATML):
        renderer = ChatRenderer(tokenizer, template, "test")
        rendering = renderer.render(Chat(CHAT, None, "messages"))
        (chat,) = encode(tokenizer, [rendering], "assistant", renderer.turn_tokens)
        expected = tokenizer.apply_chat_template(CHAT, chat_template=template)["input_ids"]
        assert chat.token_ids.tolist() == expected
        assert expected.count(begin) == ("bos" in template)


def test_only_user_messages_leave_nothing_supervised(tokenizer: PreTrainedTokenizerFast) -> None:
    assert supervised_text(tokenizer, None, CHAT[:1]) == ""
    assert supervised_text(tokenizer, templates.CHATML, CHAT[:1]) == ""


def test_no_renderings_no_chats(tokenizer: PreTrainedTokenizerFast) -> None:
    assert encode(tokenizer, [], "assistant", ()) == []


@given(widths=st.lists(st.integers(1, 4), min_size=1, max_size=30), bounds=st.lists(st.integers(0, 120), max_size=6))
def test_a_token_is_supervised_when_it_overlaps_a_span(widths: list[int], bounds: list[int]) -> None:
    ends = np.cumsum(widths).tolist()
    offsets = list(zip([0, *ends], ends, strict=False))
    bounds = sorted(bounds)
    spans = list(zip(bounds[::2], bounds[1::2], strict=False))
    expected = [int(any(start < e and end > s and s < e for s, e in spans)) for start, end in offsets]
    assert supervised_tokens(offsets, spans).tolist() == expected


def test_tokens_of_one_character_share_its_offsets() -> None:
    offsets = [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]
    assert supervised_tokens(offsets, [(1, 2)]).tolist() == [0, 1, 1, 1, 0]


def test_turns_without_markers_are_the_spans() -> None:
    assert Rendering("abcdef", ((0, 1), (2, 3)), marked=False).turns(()) == [[(0, 1)], [(2, 3)]]
    assert Rendering("abcdef", (), marked=True).turns(()) == []


def test_a_first_token_is_never_a_target() -> None:
    chat = EncodedChat(np.array([5, 6, 7], dtype=np.uint32), np.array([1, 0, 0], dtype=np.uint8))
    assert chat.targets == 0
    assert EncodedChat(chat.token_ids, np.array([1, 1, 1], dtype=np.uint8)).targets == 2


def test_half_a_surrogate_pair_is_a_bad_row() -> None:
    with pytest.raises(BadRow, match="not Unicode"):
        check_text(Rendering(json.loads('"a\\ud83d"'), (), marked=True))


def rows_that_render(
    file: str, tokenizer: PreTrainedTokenizerFast, rows: int = 200
) -> Iterator[tuple[Chat, list[int], list[int]]]:
    """Up to `rows` rows with their token ids and assistant masks, as transformers makes them."""
    with (SHARED / "data" / file).open(encoding="utf-8") as lines:
        for line, _ in zip(lines, range(rows), strict=False):
            chat = to_chat(json.loads(line), "auto")
            try:
                encoded = tokenizer.apply_chat_template(
                    chat.messages, tools=chat.tools, return_dict=True, return_assistant_tokens_mask=True
                )
            except TEMPLATE_ERRORS:
                continue
            yield chat, encoded["input_ids"], encoded["assistant_masks"]


@needs_shared
@pytest.mark.parametrize(
    ("file", "least"),
    [
        ("mtbench101_en.jsonl", 200),
        ("oasst1_zh.jsonl", 200),
        ("glaive_toolcall_en_messages.jsonl", 200),
        ("glaive_toolcall_en_sharegpt.jsonl", 200),
        ("tau_airline_gpt4o.jsonl", 10),
        ("gsm8k_reasoning_2k.jsonl", 200),
        ("fastchat_dummy_sharegpt.jsonl", 200),
    ],
)
def test_tokens_and_masks_are_those_of_transformers_with_and_without_markers(
    bpe_4096: PreTrainedTokenizerFast, file: str, least: int
) -> None:
    marked = ChatRenderer(bpe_4096, None, "test")
    unmarked = ChatRenderer(bpe_4096, strip_markers(bpe_4096.chat_template), "test")
    rows = list(rows_that_render(file, bpe_4096))
    assert len(rows) >= least
    for renderer in (marked, unmarked):
        renderings = [renderer.render(chat) for chat, _, _ in rows]
        assert all(rendering.marked == (renderer is marked) for rendering in renderings)
        encoded = encode(bpe_4096, renderings, "assistant", renderer.turn_tokens)
        for (_, token_ids, mask), chat in zip(rows, encoded, strict=True):
            assert chat.token_ids.tolist() == token_ids
            assert chat.supervised.tolist() == mask
            assert sum(mask) > 0


@needs_shared
def test_the_two_shapes_of_one_data_set_give_the_same_tokens(bpe_4096: PreTrainedTokenizerFast) -> None:
    shapes = [
        rows_that_render(f"glaive_toolcall_en_{shape}.jsonl", bpe_4096, 100) for shape in ("messages", "sharegpt")
    ]
    for one, other in zip(*shapes, strict=True):
        assert one[1:] == other[1:]
