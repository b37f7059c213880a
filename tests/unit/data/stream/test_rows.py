"""What a stream reads: sources side by side, as often as they weigh, with bad rows found where they stand."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sft_cli.data.prepare import prepare
from sft_cli.data.stream.rows import Stream
from sft_cli.errors import DataError


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]}


def chats(name: str, rows: int) -> list[dict[str, Any]]:
    return [chat(f"{name}{number}") for number in range(rows)]


def as_data(*sources: Any, **more: Any) -> dict[str, Any]:
    return {"streaming": True, "train": list(sources), **more}


def tokens(row: Any) -> tuple[int, ...]:
    return tuple(row.chat.token_ids.tolist())


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_rows_are_those_that_are_cached_without_streaming(make_plan, tmp_path: Path, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = chats("a", 100)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    for part in ("1", "2"):
        path = tmp_path / f"{part}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=10)
        elif kind == "jsonl.zst":
            with pa.CompressedOutputStream(path, "zstd") as out:
                out.write(text)
        else:
            path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    source = str(tmp_path / f"*.{kind}")
    kept = prepare(make_plan(data={"train": source}), progress=False).train
    stream = Stream(make_plan(data=as_data(source)))
    streamed = list(stream.epoch(0))
    assert [tokens(row) for row in streamed] == [tuple(kept.row(index)[0].tolist()) for index in range(200)]
    assert [row.chat.supervised.tolist() for row in streamed] == [kept.row(index)[1].tolist() for index in range(200)]
    assert streamed[-1].position == 1.0
    (report,) = stream.reports
    assert (report.rows_in, report.rows_out) == (200, 200)


def test_a_weight_is_how_often_rows_are_seen_in_an_epoch(make_plan, write_rows) -> None:
    path = write_rows(chats("a", 101))
    plan = make_plan(data=as_data({"path": str(path), "weight": 2.5}))
    stream = Stream(plan)
    seen = [Counter(tokens(row) for row in stream.epoch(epoch)) for epoch in (0, 0, 1)]
    assert Counter(seen[0].values()) == {3: 51, 2: 50}
    assert seen[0] == seen[1] != seen[2]
    assert sum(seen[0].values()) == sum(seen[2].values())
    (report,) = stream.reports
    assert report.rows_in == 2 * 101, "counted in the first epoch's first pass, which this test read twice"


def test_a_weight_that_leaves_no_row_is_an_error(make_plan, write_rows) -> None:
    plan = make_plan(data=as_data({"path": str(write_rows(chats("a", 20))), "weight": 0.01}))
    with pytest.raises(DataError, match=r"weight 0\.01 of 20 rows is not one row an epoch"):
        list(Stream(plan).epoch(0))


def test_sources_end_together_whatever_their_sizes(make_plan, write_rows) -> None:
    small, large = write_rows(chats("a", 20), "a.jsonl"), write_rows(chats("b", 2000), "b.jsonl")
    rows = list(Stream(make_plan(data=as_data(str(small), str(large)))).epoch(0))
    places = [index for index, row in enumerate(rows) if row.source == 0]
    assert len(places) == 20
    for number, place in enumerate(places, start=1):
        assert place / len(rows) == pytest.approx(number / 20, abs=0.06)
    positions = [row.position for row in rows]
    assert positions == sorted(positions)


def test_sequential_reads_source_after_source(make_plan, write_rows) -> None:
    first, second = write_rows(chats("a", 40), "a.jsonl"), write_rows(chats("b", 40), "b.jsonl")
    plan = make_plan(data=as_data({"path": str(first), "weight": 2.0}, str(second)), batching={"order": "sequential"})
    rows = list(Stream(plan).epoch(0))
    assert [row.source for row in rows] == [0] * 80 + [1] * 40
    assert [tokens(row) for row in rows[:40]] == [tokens(row) for row in rows[40:80]]
    assert (rows[79].position, rows[-1].position) == (0.5, 1.0)


def test_a_bad_row_in_the_middle_is_named(make_plan, write_rows) -> None:
    path = write_rows([*chats("a", 300), '{"messages": [', *chats("b", 300)])
    rows = Stream(make_plan(data=as_data(str(path)))).epoch(0)
    with pytest.raises(DataError) as raised:
        list(rows)
    assert raised.value.where == f"{path}:301"
    assert "not JSON" in raised.value.what
    assert "bad_rows: skip" in (raised.value.fix or "")


def test_bad_and_overlong_rows_are_counted_as_without_streaming(make_plan, write_rows) -> None:
    rows = [*chats("a", 50), "{", chat("so " * 300), {"messages": [{"role": "user", "content": "?"}]}, *chats("b", 50)]
    more = {"bad_rows": "skip", "overlong": "drop", "max_length": 64}
    source = str(write_rows(rows))
    stream = Stream(make_plan(data=as_data(source, **more)))
    list(stream.epoch(0))
    list(stream.epoch(1))
    assert stream.reports == prepare(make_plan(data={"train": source, **more}), progress=False).report.train


@pytest.mark.parametrize(
    ("rows", "what"), [([], "holds no row"), (["{"] * 5, "no supervised token anywhere: all 5 rows were left out")]
)
def test_a_stream_without_rows_is_an_error(make_plan, write_rows, rows: list[Any], what: str) -> None:
    plan = make_plan(data=as_data(str(write_rows(rows)), bad_rows="skip"))
    with pytest.raises(DataError, match=what):
        list(Stream(plan).epoch(0))
