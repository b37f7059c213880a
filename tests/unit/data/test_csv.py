"""CSV files: every record with the line it begins at, every bad one with a reason."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sft_cli.data.files import read_file
from sft_cli.data.raw import RawRow
from sft_cli.errors import DataError

CHAT = [{"role": "user", "content": 'say "hi", please\n'}, {"role": "assistant", "content": "hi"}]


def rows_of(folder: Path, content: bytes) -> list[RawRow]:
    file = folder / "a.csv"
    file.write_bytes(content)
    return list(read_file(file))


def test_places_are_the_lines_where_records_begin(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbfprompt,completion\r\n"two\nlines",a\r\n\r\n"one, only",\r\nlast,"b\r\n\r\nc"'
    rows = rows_of(tmp_path, content)
    assert [row.value for row in rows] == [
        {"prompt": "two\nlines", "completion": "a"},
        {"prompt": "one, only", "completion": ""},
        {"prompt": "last", "completion": "b\r\n\r\nc"},
    ]
    assert [row.place for row in rows] == [f"{tmp_path}/a.csv:{line}" for line in (2, 5, 6)]
    assert rows[-1].share_read == 1.0


def test_chats_are_json_in_a_cell(tmp_path: Path) -> None:
    file = io.StringIO()
    csv.writer(file).writerows([["id", "messages", "tools"], ["[1]", json.dumps(CHAT), ""]])
    (row,) = rows_of(tmp_path, file.getvalue().encode())
    assert row.value == {"id": "[1]", "messages": CHAT}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"only one", "another number of cells than the header"),
        (b"a,b,c", "another number of cells than the header"),
        (b'"a"b,c', "not CSV"),
        (b"a\xff,b", "not UTF-8"),
        (b"x,\"[{'role': 'user'}]\"", "no JSON in column messages"),
        (b"x," + b"[" * 100_000, "no JSON in column messages"),
        (b'x,"[{""role"": 1, ""role"": 2}]"', "no JSON in column messages"),
    ],
)
def test_a_bad_record_is_a_row_with_a_problem_and_reading_goes_on(tmp_path: Path, record: bytes, reason: str) -> None:
    rows = rows_of(tmp_path, b"t,messages\nfirst,[]\n" + record + b"\nlast,[]\n")
    first, bad, last = rows
    assert (first.value, last.value) == ({"t": "first", "messages": []}, {"t": "last", "messages": []})
    assert (first.problem, last.problem) == (None, None)
    assert (bad.place, bad.value, bad.problem.reason) == (f"{tmp_path}/a.csv:3", None, reason)


def test_a_quote_that_nobody_closes_is_told_with_its_line(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b'a,b\n1,2\n"3,4\n5,6\n')
    assert [(row.place[-1], row.problem is None) for row in rows] == [("2", True), ("3", False)]
    assert str(rows[1].problem) == "a quote that is never closed, and takes the rest of the file along: lines 3 to 4"
    assert rows_of(tmp_path, b'a,b\n1,2\n"3,4\n')[-1].problem.reason == "not CSV", "it takes nothing along"


def test_a_cell_longer_than_any_chat_is_a_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sft_cli.data.files.csv_table.LONGEST_CELL", 1000)
    rows = rows_of(tmp_path, b"a\n" + b"x" * 1001 + b"\n" + b"x" * 1000 + b"\n")
    assert [row.problem and row.problem.reason for row in rows] == ["not CSV", None]
    csv.field_size_limit(2**26)


@pytest.mark.parametrize(
    ("header", "what"), [(b"a,,b", "no header"), (b"a,b,a", "no header"), (b"a,b\xff", "the header is not UTF-8")]
)
def test_a_header_that_names_no_columns(tmp_path: Path, header: bytes, what: str) -> None:
    with pytest.raises(DataError, match=what) as caught:
        rows_of(tmp_path, b"\n" + header + b"\n1,2,3\n")
    assert caught.value.where == f"{tmp_path}/a.csv:2"
    assert caught.value.fix


@pytest.mark.parametrize("content", [b"", b"\n", b"prompt,completion\n"])
def test_no_record_is_no_row(tmp_path: Path, content: bytes) -> None:
    assert rows_of(tmp_path, content) == []


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"))


@settings(deadline=None)
@given(st.lists(st.tuples(cells, cells), min_size=1))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, records: list[tuple[str, str]]) -> None:
    file = io.StringIO()
    csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("prompt", "completion"), *records])
    rows = rows_of(tmp_path_factory.mktemp("csv"), file.getvalue().encode())
    assert [tuple(row.value.values()) for row in rows] == records
