"""The beginning of a stream, which is all that is looked at before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sft_cli.data.prepare import prepare
from sft_cli.data.stream import look as look_module
from sft_cli.errors import DataError


def chats(rows: int) -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": str(number)}]}
        for number in range(rows)
    ]


def test_the_first_rows_and_nothing_on_disk(make_plan, write_rows, tmp_path: Path) -> None:
    path = write_rows([*chats(3000), "{"])
    prepared = prepare(make_plan(data={"train": str(path), "streaming": True}), progress=False)
    assert not prepared.is_whole
    assert len(prepared.train) == look_module.FIRST_ROWS == prepared.report.train[0].rows_out
    assert not (tmp_path / "cache").exists()


def test_rows_that_are_left_out_were_looked_at_too(make_plan, write_rows) -> None:
    """Or a stream of which little remains would be read to its end before anything is started."""
    path = write_rows([*chats(10), *["{"] * 5000])
    prepared = prepare(make_plan(data={"train": str(path), "streaming": True, "bad_rows": "skip"}), progress=False)
    assert not prepared.is_whole
    (report,) = prepared.report.train
    assert (report.rows_in, report.rows_out) == (look_module.FIRST_ROWS, 10)
    path = write_rows([*["{"] * 3000, *chats(100)])
    prepared = prepare(make_plan(data={"train": str(path), "streaming": True, "bad_rows": "skip"}), progress=False)
    assert len(prepared.train) > 0


def test_evaluation_data_is_not_streamed(make_plan, write_rows, tmp_path: Path) -> None:
    path = str(write_rows(chats(100)))
    data = {"train": path, "eval": path, "streaming": True}
    prepared = prepare(make_plan(data=data), progress=False)
    assert prepared.eval is not None
    assert len(prepared.eval) == 100
    assert (tmp_path / "cache").exists()


def test_every_source_is_opened_and_rows_stand_source_after_source(make_plan, write_rows) -> None:
    large, small = write_rows(chats(5000), "large.jsonl"), write_rows(chats(10), "small.jsonl")
    prepared = prepare(make_plan(data={"train": [str(large), str(small)], "streaming": True}), progress=False)
    first, second = prepared.report.train
    assert second.rows_out == 10
    assert prepared.train.source_of_row.tolist() == [0] * first.rows_out + [1] * 10
    empty = write_rows([], "empty.jsonl")
    with pytest.raises(DataError, match="holds no row"):
        prepare(make_plan(data={"train": [str(large), str(empty)], "streaming": True}), progress=False)


def test_a_missing_file_and_a_first_bad_row(make_plan, write_rows, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        prepare(make_plan(data={"train": str(tmp_path / "gone.jsonl"), "streaming": True}), progress=False)
    path = write_rows(["{", *chats(100)])
    with pytest.raises(DataError) as raised:
        prepare(make_plan(data={"train": str(path), "streaming": True}), progress=False)
    assert raised.value.where == f"{path}:1"


def test_too_little_data_for_the_ranks_is_found_where_it_is_all_there_is(make_plan, write_rows) -> None:
    plan = make_plan(ranks=4, data={"train": str(write_rows(chats(3))), "streaming": True}, train={"max_steps": 5})
    with pytest.raises(DataError, match="fewer packs than ranks"):
        prepare(plan, progress=False)
