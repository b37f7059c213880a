from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from sft_cli.data.builtin_chat import generate
from sft_cli.data.prepare import prepare
from sft_cli.data.report import SourceReport
from sft_cli.errors import DataError, ModelError

BUILTIN = Path(__file__).parents[3] / "sft_cli" / "data" / "builtin" / "tiny-hybrid"
SHARED = Path(__file__).parents[4] / "shared"
GOOD = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]}
GOOD_TOO = {"conversations": [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "Ada."}]}
ONLY_USER = {"messages": [{"role": "user", "content": "Why?"}]}
NULL_CONTENT = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": None}]}
TURN_TOKEN = {"messages": [{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "No."}]}
UNKNOWN = {"prompt": "a", "answer": "b"}
LONG = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "so " * 300}]}
BROKEN = '{"messages": ['


def long_question(words: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "so " * words}, {"role": "assistant", "content": "Yes."}]}


def test_builtin_chat_tokenises_as_transformers_does(make_plan) -> None:
    plan = make_plan(data={"eval": {"path": "builtin:chat", "split": "heldout"}})
    prepared = prepare(plan, progress=False)
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN)
    assert len(prepared.train) == 2000
    for index, row in enumerate(generate("heldout")):
        encoded = tokenizer.apply_chat_template(row["messages"], return_dict=True, return_assistant_tokens_mask=True)
        token_ids, supervised = prepared.eval.row(index)
        assert token_ids.tolist() == encoded["input_ids"]
        assert supervised.tolist() == encoded["assistant_masks"]
    (report,) = prepared.report.eval
    assert (report.path, report.format, report.rows_in, report.rows_out) == ("builtin:chat", "messages", 200, 200)
    assert report.tokens == len(prepared.eval.token_ids)
    assert report.supervised_tokens == prepared.eval.supervised.sum()


def test_without_evaluation_data_there_is_none(make_plan, write_rows) -> None:
    prepared = prepare(make_plan(data={"train": str(write_rows([GOOD]))}), progress=False)
    assert prepared.eval is None
    assert prepared.report.eval == ()


def test_duplicate_rows_stay(make_plan, write_rows) -> None:
    prepared = prepare(make_plan(data={"train": str(write_rows([GOOD] * 3))}), progress=False)
    assert len({tuple(prepared.train.row(index)[0].tolist()) for index in range(3)}) == 1
    assert len(prepared.train) == 3


def test_skipped_rows_are_counted_by_reason(make_plan, write_rows) -> None:
    rows = [GOOD, BROKEN, UNKNOWN, "", ONLY_USER, GOOD_TOO, TURN_TOKEN, NULL_CONTENT, {"messages": []}, BROKEN]
    file = write_rows(rows)
    prepared = prepare(make_plan(data={"train": str(file), "bad_rows": "skip"}), progress=False)
    (report,) = prepared.report.train
    assert report.dropped == {
        "not JSON": 2,
        "unknown shape": 1,
        "no assistant turn": 1,
        "a turn token in the text": 1,
        "content is null": 1,
        "no messages": 1,
    }
    assert (report.rows_in, report.rows_out, report.format) == (9, 2, "messages+sharegpt")
    assert len(prepared.train) == 2


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (BROKEN, "not JSON"),
        (UNKNOWN, "unknown shape"),
        (TURN_TOKEN, "a turn token in the text"),
        (NULL_CONTENT, "content is null"),
        (ONLY_USER, "no assistant turn"),
        ({"messages": []}, "no messages"),
        ({"messages": [{"role": "user", "content": 3}]}, "content is not text"),
        (
            '{"messages": [{"role": "user", "content": "\\ud83d"}, {"role": "assistant", "content": "x"}]}',
            "not Unicode",
        ),
        ("[1, 2]", "not an object"),
    ],
)
def test_the_first_bad_row_stops_with_its_place_and_nothing_is_written(
    make_plan, write_rows, row: Any, what: str
) -> None:
    file = write_rows([GOOD, "", row, UNKNOWN])
    plan = make_plan(data={"train": str(file)})
    with pytest.raises(DataError, match=what) as caught:
        prepare(plan, progress=False)
    assert caught.value.exit_code == 3
    assert caught.value.where == f"{file}:3"
    assert "data.bad_rows: skip" in caught.value.fix
    assert list(Path(plan.recipe.data.cache_dir).iterdir()) == []


def test_a_very_long_row_is_truncated_dropped_or_an_error(make_plan, write_rows) -> None:
    file = write_rows([GOOD, LONG])

    def run(overlong: str, **data: Any) -> tuple[list[int], dict[str, int]]:
        plan = make_plan(data={"train": str(file), "overlong": overlong} | data, batching={"tokens": 64})
        prepared = prepare(plan, progress=False)
        return prepared.train.lengths.tolist(), prepared.report.train[0].dropped

    lengths, dropped = run("truncate")
    assert (lengths[1], dropped) == (64, {})
    assert run("truncate", max_length=32)[0][1] == 32
    lengths, dropped = run("drop")
    assert (len(lengths), dropped) == (1, {"longer than max_length": 1})
    with pytest.raises(DataError, match="more than max_length 64") as caught:
        run("error", bad_rows="skip")
    assert caught.value.where == f"{file}:2"


def test_rows_whose_supervised_tokens_are_cut_away_are_dropped_and_counted(make_plan, write_rows) -> None:
    file = write_rows([GOOD, long_question(300)])
    prepared = prepare(make_plan(data={"train": str(file)}, batching={"tokens": 64}), progress=False)
    assert prepared.report.train[0].dropped == {"no supervised token": 1}
    assert (prepared.train.supervised.sum()) > 0


@pytest.mark.parametrize("bad_rows", ["error", "skip"])
def test_no_supervised_token_anywhere(make_plan, write_rows, bad_rows: str) -> None:
    unweighted = {"messages": [GOOD["messages"][0], GOOD["messages"][1] | {"weight": 0}]}
    file = write_rows([unweighted, unweighted])
    with pytest.raises(DataError, match=r"no supervised token anywhere: all 2 rows .*no supervised token: 2") as caught:
        prepare(make_plan(data={"train": str(file), "bad_rows": bad_rows}), progress=False)
    assert caught.value.where == str(file)


def test_supervise(make_plan, write_rows) -> None:
    two = {"messages": GOOD["messages"] * 2}
    file = write_rows([two])

    def supervised(supervise: str) -> int:
        return int(
            prepare(make_plan(data={"train": str(file), "supervise": supervise}), progress=False).train.supervised.sum()
        )

    everything, both, last = (supervised(value) for value in ("all", "assistant", "last_assistant"))
    assert everything == len(prepare(make_plan(data={"train": str(file)}), progress=False).train.token_ids)
    assert last > 0
    assert both == 2 * last < everything


@pytest.mark.parametrize("content", [b"", b"\n \n"])
@pytest.mark.parametrize("name", ["chat.jsonl", "chat.json"])
def test_an_empty_file(make_plan, tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match="holds no row") as caught:
        prepare(make_plan(data={"train": str(tmp_path / name)}), progress=False)
    assert caught.value.where == str(tmp_path / name)


def test_several_sources_are_told_apart(make_plan, write_rows) -> None:
    one, two = write_rows([GOOD] * 2), write_rows([GOOD_TOO] * 3, name="two.jsonl")
    prepared = prepare(make_plan(data={"train": [str(one), str(two)]}), progress=False)
    assert prepared.train.source_of_row.tolist() == [0, 0, 1, 1, 1]
    assert [(report.format, report.rows_out) for report in prepared.report.train] == [("messages", 2), ("sharegpt", 3)]


def test_a_broken_template_is_an_error_of_the_model(make_plan, write_rows) -> None:
    template = write_rows(["{% for m in messages %}"], name="broken.jinja")
    with pytest.raises(ModelError, match="the chat template can't render") as caught:
        prepare(make_plan(model={"chat_template": str(template)}), progress=False)
    assert caught.value.where == f"model.chat_template ({template})"


def test_many_rows_keep_their_order_over_batches(make_plan, write_rows) -> None:
    rows = [
        {"messages": [{"role": "user", "content": str(n)}, {"role": "assistant", "content": "Yes."}]}
        for n in range(1300)
    ]
    prepared = prepare(make_plan(data={"train": str(write_rows(rows))}), progress=False)
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN)
    for index in (0, 511, 512, 1299):
        assert f"user\n{index}<" in tokenizer.decode(prepared.train.row(index)[0])


def test_progress_is_one_plain_line_on_stderr_where_there_is_no_terminal(make_plan, write_rows, capsys) -> None:
    plan = make_plan(data={"train": str(write_rows([GOOD] * 1200))})
    prepare(plan, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "tokenising chat.jsonl 1,200 rows\n"
    prepare(plan, progress=True)
    assert capsys.readouterr().err == ""


def test_cached_tokens_need_neither_torch_nor_transformers(make_plan, write_rows, tmp_path: Path) -> None:
    plan = make_plan(data={"train": str(write_rows([GOOD]))})
    first = prepare(plan, progress=False).report.train
    plan.write(tmp_path / "plan.json")
    code = (
        "import json, sys; from pathlib import Path; from sft_cli.plan.plan import Plan\n"
        "from sft_cli.data.order import count_steps; from sft_cli.data.prepare import prepare\n"
        f"plan = Plan.read(Path({str(tmp_path / 'plan.json')!r})); prepared = prepare(plan, progress=True)\n"
        "heavy = {'torch', 'transformers', 'datasets'} & set(sys.modules)\n"
        "print(json.dumps([sorted(heavy), count_steps(prepared.train, plan), prepared.report.train[0].to_json()]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    heavy, steps, report = json.loads(done.stdout)
    assert (heavy, steps) == ([], 1)
    assert (SourceReport(**report),) == first


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")
def test_a_shared_set_has_the_measured_number_of_tokens(make_plan) -> None:
    """402,709 tokens of Qwen3.5's vocabulary in MT-Bench-101, 74.1% of them supervised: `facts/length_stats.json`."""
    stats = json.loads((SHARED / "facts" / "length_stats.json").read_text())["data/mtbench101_en"]
    plan = make_plan(
        data={"train": str(SHARED / "data" / "mtbench101_en.jsonl")}, tokenizer=SHARED / "tokenizers" / "qwen3_5"
    )
    (report,) = prepare(plan, progress=False).report.train
    assert report.rows_out == stats["conversations"]
    assert report.tokens == stats["total_tokens_qwen3_5"]
    assert report.supervised_tokens / report.tokens == pytest.approx(stats["loss_tokens_share"], abs=0.001)
