"""Every shared file, with `format: auto` and each tokenizer: no row unaccounted for, masks found in another way.

The other way knows nothing of spans and offsets: all tokens are decoded, and in that text everything from the end of an
assistant's header to the next end of a turn is looked up as a string.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pytest
from support import chat_templates as templates
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sft_cli.data.prepare import prepare
from sft_cli.data.rows import TokenizedRows
from sft_cli.data.tokenizer import load_tokenizer

SHARED = Path(__file__).parents[4] / "shared"
CHATML = Path(__file__).parents[3] / "sft_cli" / "data" / "chatml.jinja"
FORMATS = {
    "fastchat_dummy_sharegpt.jsonl": "sharegpt",
    "glaive_toolcall_en_messages.jsonl": "messages",
    "glaive_toolcall_en_sharegpt.jsonl": "sharegpt",
    "gsm8k_reasoning_2k.jsonl": "messages",
    "mtbench101_en.jsonl": "messages",
    "oasst1_zh.jsonl": "messages",
    "reason_tool_use_50.jsonl": "messages",
    "tau_airline_gpt4o.jsonl": "messages",
    "ultrachat_like_en.jsonl.gz": "messages",
}
TEMPLATES = {"chatml": None, "qwen3": templates.QWEN3, "qwen3.5": templates.QWEN3_5, "qwen3.8": templates.QWEN3_8}
TURN = re.compile(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", re.DOTALL)
HIDDEN_REASONING = {"reasoning left out by the chat template"}
SAMPLE = 25

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")


@cache
def load(tokenizer: str) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(SHARED / "tokenizers" / tokenizer)


@pytest.fixture(autouse=True)
def _loaded_once(monkeypatch: pytest.MonkeyPatch, loaded: Callable[..., Any]) -> None:
    """A large vocabulary takes longer to load than these rows to tokenise."""
    monkeypatch.setattr("sft_cli.data.tokenizer.load_tokenizer", loaded)


@pytest.fixture(scope="module")
def loaded() -> Callable[..., Any]:
    return cache(load_tokenizer)


def rows_of(file: str, tmp_path: Path, rows: int | None) -> tuple[Path, int]:
    """The file, or its first rows, and how many rows it has."""
    path = SHARED / "data" / file
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as stream:
        lines = list(islice(stream, rows))
    if rows is None:
        return path, len(lines)
    (tmp_path / "sample.jsonl").write_bytes(b"".join(lines))
    return tmp_path / "sample.jsonl", len(lines)


def assert_masks(rows: TokenizedRows, tokenizer: PreTrainedTokenizerFast) -> int:
    """The rows' supervised runs are the turns of their text; how many there are."""
    turns = 0
    for index in range(len(rows)):
        token_ids, supervised = rows.row(index)
        pairs = zip(token_ids.tolist(), supervised.tolist(), strict=True)
        runs = [[token for token, _ in run] for flag, run in groupby(pairs, key=lambda pair: pair[1]) if flag]
        expected = TURN.findall(tokenizer.decode(token_ids))
        assert [tokenizer.decode(run) for run in runs] == expected, index
        turns += len(expected)
    return turns


def assert_loads(make_plan: Any, path: Path, rows: int, tokenizer: str, template: Path | None) -> tuple[Any, int]:
    plan = make_plan(
        data={"train": str(path)},
        batching={"tokens": 2**20},  # nothing is cut: the masks of whole rows are compared
        tokenizer=SHARED / "tokenizers" / tokenizer,
        model={} if template is None else {"chat_template": str(template)},
    )
    prepared = prepare(plan, progress=False)
    (report,) = prepared.report.train
    assert (report.rows_in, report.rows_out + sum(report.dropped.values())) == (rows, rows)
    assert report.rows_out == len(prepared.train)
    return report, assert_masks(prepared.train, load(tokenizer))


@pytest.mark.parametrize("tokenizer", ["bpe_4096", "bpe_32768", "qwen3_5"])
@pytest.mark.parametrize("file", FORMATS)
def test_each_file_with_each_tokenizer(make_plan, tmp_path: Path, file: str, tokenizer: str) -> None:
    path, rows = rows_of(file, tmp_path, SAMPLE)
    report, turns = assert_loads(make_plan, path, rows, tokenizer, None)
    assert (report.format, report.dropped) == (FORMATS[file], {})
    assert turns >= rows
    # The shared template shows reasoning after the last user's message alone.
    assert set(report.changed) <= (HIDDEN_REASONING if file == "reason_tool_use_50.jsonl" else set())


@pytest.mark.parametrize("file", ["fastchat_dummy_sharegpt.jsonl", "oasst1_zh.jsonl", "tau_airline_gpt4o.jsonl"])
def test_all_rows_of_a_file(make_plan, tmp_path: Path, file: str) -> None:
    path, rows = rows_of(file, tmp_path, None)
    report, _ = assert_loads(make_plan, path, rows, "bpe_32768", None)
    assert (report.format, report.dropped, report.changed) == (FORMATS[file], {}, {})


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("file", ["glaive_toolcall_en_messages.jsonl", "glaive_toolcall_en_sharegpt.jsonl",
                                  "reason_tool_use_50.jsonl", "tau_airline_gpt4o.jsonl"])  # fmt: skip
def test_tools_and_reasoning_with_other_templates(make_plan, tmp_path: Path, file: str, template: str) -> None:
    jinja = CHATML
    text = TEMPLATES[template]
    if text is not None:
        jinja = tmp_path / "template.jinja"
        jinja.write_text(text)
    path, rows = rows_of(file, tmp_path, SAMPLE)
    report, turns = assert_loads(make_plan, path, rows, "bpe_4096", jinja)
    assert (report.dropped, turns >= rows) == ({}, True)
    drops = template in ("qwen3", "qwen3.5") and file == "reason_tool_use_50.jsonl"
    assert set(report.changed) == (HIDDEN_REASONING if drops else set())
