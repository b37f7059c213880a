"""What people's files hold: each thing that can't be trained on with its place, reason and remedy, the rest as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import chat_templates as templates
from transformers import AutoTokenizer

from sft_cli.data.chat import check_chat
from sft_cli.data.formats import to_chat
from sft_cli.data.prepare import prepare
from sft_cli.data.raw import BadRow
from sft_cli.errors import DataError

BUILTIN = Path(__file__).parents[3] / "sft_cli" / "data" / "builtin" / "tiny-hybrid"
GOOD = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]}


def chat(*turns: tuple[str, Any]) -> str:
    return json.dumps({"messages": [{"role": role, "content": content} for role, content in turns]}, ensure_ascii=False)


def call(arguments: Any) -> str:
    calls = [{"type": "function", "function": {"name": "f", "arguments": arguments}}]
    user = {"role": "user", "content": "a"}
    return json.dumps({"messages": [user, {"role": "assistant", "content": None, "tool_calls": calls}]})


USER, ANSWER = ("user", "Why?"), ("assistant", "Because.")
BAD: dict[str, tuple[str, str, str]] = {
    "malformed JSON": ('{"messages": [', "not JSON", ""),
    "a NUL byte": ('{"messages": "\0"}', "not JSON", ""),
    "NUL in the text": (chat(USER, ("assistant", "a\0b")), "a NUL character in the text", "Remove it."),
    "lone surrogate": (
        '{"messages": [{"role": "user", "content": "\\ud83d"}, {"role": "assistant", "content": "x"}]}',
        "text that is not Unicode",
        "surrogate",
    ),
    "empty messages": ('{"messages": []}', "no messages", "Remove the row"),
    "null alone": ("null", "not an object", "Known shapes"),
    "null content alone": (chat(USER, ("assistant", None)), "content is null", "Give it a text"),
    "a number as content": (chat(USER, ("assistant", 3)), "content is not text", "Write a text"),
    "unknown role": (chat(USER, ("alien", "Hm."), ANSWER), "unknown role", "Known roles: assistant, developer"),
    "no assistant turn": (chat(USER), "no assistant turn", "Add the assistant's answer"),
    "broken JSON arguments": (call('{"x": '), "tool call arguments that are not JSON", "Write the arguments"),
    "image parts": (
        chat(("user", [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "a"}]), ANSWER),
        "a part that is not text (image_url)",
        "sftune trains text only",
    ),
    "control tokens over two parts": (
        chat(("user", [{"type": "text", "text": "a<|im_"}, {"type": "text", "text": "end|>"}]), ANSWER),
        "a turn token in the text",
        "Remove it",
    ),
    "control tokens in escapes": (call('{"a": "\\u003c|im_end|>"}'), "a turn token in the text", "Remove it"),
    "control tokens": (chat(("user", "<|im_start|>assistant\nx"), ANSWER), "a turn token in the text", "Remove it"),
    "a half weight": (
        json.dumps({"messages": [GOOD["messages"][0], GOOD["messages"][1] | {"weight": 0.5}]}),
        "a weight that is not 0 or 1",
        "Write `weight` 0 or 1",
    ),
}
FINE = {
    "U+2028": chat(USER, ("assistant", "one\u2028two\u2029three\u0085four")),
    "a blank line": "\n   \n\t",
    "CRLF": chat(USER, ANSWER) + "\r",
    "null beside tool calls": call({"x": 1}),
    "arguments as JSON text": call('{"x": 1}'),
    "no arguments": call(""),
    "two system messages": chat(("system", "a"), ("system", "b"), USER, ANSWER),
    "a system message in the middle": chat(USER, ANSWER, ("system", "b"), USER, ANSWER),
    "a developer message": chat(("developer", "a"), USER, ANSWER),
    "text parts": chat(("user", [{"type": "text", "text": "a"}]), ANSWER),
}


@pytest.fixture
def chatml() -> str:
    return str(BUILTIN.parents[1] / "chatml.jinja")


@pytest.mark.parametrize("what", BAD)
def test_a_bad_row_says_where_why_and_what_to_do(make_plan, write_rows, chatml: str, what: str) -> None:
    line, reason, fix = BAD[what]
    file = write_rows([GOOD, "", line, GOOD])
    with pytest.raises(DataError) as caught:
        prepare(make_plan(data={"train": str(file)}, model={"chat_template": chatml}), progress=False)
    assert caught.value.exit_code == 3
    assert caught.value.where == f"{file}:3"
    assert caught.value.what.startswith(reason)
    assert fix in caught.value.fix
    assert "data.bad_rows: skip" in caught.value.fix


def test_bad_rows_that_are_skipped_are_counted_by_reason(make_plan, write_rows, chatml: str) -> None:
    file = write_rows([GOOD, *(line for line, _, _ in BAD.values())])
    plan = make_plan(data={"train": str(file), "bad_rows": "skip"}, model={"chat_template": chatml})
    (report,) = prepare(plan, progress=False).report.train
    expected: dict[str, int] = {}
    for _, reason, _ in BAD.values():
        expected[reason] = expected.get(reason, 0) + 1
    assert report.dropped == expected
    assert (report.rows_in, report.rows_out) == (len(BAD) + 1, 1)


@pytest.mark.parametrize("what", FINE)
def test_what_looks_odd_and_is_fine(make_plan, write_rows, chatml: str, what: str) -> None:
    file = write_rows([GOOD, FINE[what]])
    (report,) = prepare(
        make_plan(data={"train": str(file)}, model={"chat_template": chatml}), progress=False
    ).report.train
    assert report.rows_in == report.rows_out == (1 if what == "a blank line" else 2)
    assert (report.dropped, report.changed) == ({}, {})


def test_a_byte_order_mark_is_no_text(make_plan, tmp_path: Path) -> None:
    with_mark, without = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    without.write_text(json.dumps(GOOD) + "\n", encoding="utf-8")
    with_mark.write_bytes(b"\xef\xbb\xbf" + without.read_bytes())
    tokens = [
        prepare(make_plan(data={"train": str(file)}), progress=False).train.token_ids.tolist()
        for file in (with_mark, without)
    ]
    assert tokens[0] == tokens[1]


def test_u2028_is_text_of_one_row(make_plan, write_rows, chatml: str) -> None:
    file = write_rows([FINE["U+2028"]])
    prepared = prepare(make_plan(data={"train": str(file)}, model={"chat_template": chatml}), progress=False)
    text = AutoTokenizer.from_pretrained(BUILTIN).decode(prepared.train.row(0)[0])
    assert "one\u2028two\u2029three\u0085four<|im_end|>" in text


@pytest.mark.parametrize(
    "line", [FINE["two system messages"], FINE["a system message in the middle"]], ids=["two", "middle"]
)
def test_a_template_that_refuses_such_a_row_is_quoted(make_plan, write_rows, tmp_path: Path, line: str) -> None:
    template = tmp_path / "strict.jinja"
    refusal = "{{ raise_exception('System message must be at the beginning.') }}"
    template.write_text(
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}" + refusal + "{% endif %}{% endfor %}"
        + templates.CHATML
    )  # fmt: skip
    file = write_rows([GOOD, line])
    with pytest.raises(DataError, match=r"raises: System message must be at the beginning\.") as caught:
        prepare(make_plan(data={"train": str(file)}, model={"chat_template": str(template)}), progress=False)
    assert caught.value.where == f"{file}:2"
    assert f"model.chat_template ({template})" in caught.value.fix


def test_without_an_assistant_every_token_can_still_be_learned(make_plan, write_rows) -> None:
    file = write_rows([chat(USER)])
    prepared = prepare(make_plan(data={"train": str(file), "supervise": "all"}), progress=False)
    assert prepared.train.supervised.all()


def test_a_template_without_tools_is_not_trained_on_calls_that_it_hides(make_plan, write_rows) -> None:
    file = write_rows([GOOD, call({"x": 1})])
    with pytest.raises(DataError, match="a tool call that the chat template leaves out: the call of f") as caught:
        prepare(make_plan(data={"train": str(file)}), progress=False)
    assert caught.value.where == f"{file}:2"
    assert "model.chat_template" in caught.value.fix


@pytest.mark.parametrize("override", [{"weight": 0}, {"train": False}])
def test_a_question_that_all_can_not_leave_out_is_a_bad_row(override: dict[str, Any]) -> None:
    user, answer = GOOD["messages"]
    left_out = to_chat({"messages": [user | override, answer]}, "auto")
    with pytest.raises(BadRow, match=r"message 1 \(user\), and data.supervise: all can leave out assistant messages"):
        check_chat(left_out, "all")
    check_chat(left_out, "assistant")
    check_chat(to_chat({"messages": [user, answer | override]}, "auto"), "all")
