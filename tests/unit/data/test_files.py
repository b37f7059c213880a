from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sft_cli.data.files import find_files, read_file, without_nulls
from sft_cli.errors import DataError


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_lines_are_cut_at_newlines_alone(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", '{"t": "one\u2028two\x85three\u2029"}\n{"t": 2}\n'.encode())
    assert [row.value for row in read_file(file)] == [{"t": "one\u2028two\x85three\u2029"}, {"t": 2}]


def test_byte_order_mark_blank_lines_and_carriage_returns(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", b'\xef\xbb\xbf{"t": 1}\r\n\r\n  \n{"t": 4}')
    rows = list(read_file(file))
    assert [row.value for row in rows] == [{"t": 1}, {"t": 4}]
    assert [row.place for row in rows] == [f"{file}:1", f"{file}:4"]
    assert rows[-1].share_read == 1.0


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\xef\xbb\xbf\r"])
def test_byte_order_marks_that_stand_alone_or_in_the_middle(tmp_path: Path, mark: bytes) -> None:
    """The second is what `cat` makes of two files."""
    file = write(tmp_path, "a.jsonl", mark + b'\n{"t": 2}\n\xef\xbb\xbf{"t": 3}\n')
    assert [(row.place, row.value) for row in read_file(file)] == [(f"{file}:2", {"t": 2}), (f"{file}:3", {"t": 3})]


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        (b'{"messages": [', "not JSON: Expecting value at column 15"),
        (b'{"arguments": NaN}', "not JSON: NaN is no JSON number"),
        (b'{"arguments": -Infinity}', "not JSON: -Infinity is no JSON number"),
        (b'{"arguments": 1e999}', "not JSON: 1e999 is too large a number"),
        (b'{"a": "b', "not JSON: Unterminated string starting at column 7"),
        (b'{"a": "\x01"}', "not JSON: Invalid control character at column 8"),
        (b'{"a": "\0"}', "not JSON: a NUL byte, the first at column 8"),
        (b"\0\0\0\0", "not JSON: a NUL byte, the first at column 1"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', 'not JSON: the key "c" stands twice in an object'),
    ],
)
def test_a_bad_line_has_one_number_of_a_line_and_no_number_that_json_has_not(
    tmp_path: Path, line: bytes, detail: str
) -> None:
    (row,) = read_file(write(tmp_path, "a.jsonl", line + b"\n"))
    assert str(row.problem) == detail


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "Hi"}]},
        {"prompt": [{"role": "user", "content": "Hi"}], "completion": "Yes"},
        {"instruction": "Do", "output": "Done", "history": [["x", "y"]]},
        {"instruction": "Do", "output": "Done"},
    ],
)
def test_a_json_document_may_be_one_row_of_any_shape(tmp_path: Path, row: dict[str, object]) -> None:
    (found,) = read_file(write(tmp_path, "a.json", json.dumps(row).encode()))
    assert found.value == row


def test_an_empty_list_beside_the_rows_is_none_of_them(tmp_path: Path) -> None:
    file = write(tmp_path, "a.json", b'{"version": 1, "data": [{"t": 1}], "tags": []}')
    assert [row.value for row in read_file(file)] == [{"t": 1}]


def test_a_huge_line(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", json.dumps({"t": "x" * 5_000_000}).encode() + b'\n{"t": 2}\n')
    assert [len(str(row.value["t"])) for row in read_file(file)] == [5_000_000, 1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"t": 1', "not JSON"),
        (b"{'t': 1}", "not JSON"),
        (b'{"t": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_line_is_a_row_with_a_problem_and_reading_goes_on(tmp_path: Path, line: bytes, reason: str) -> None:
    file = write(tmp_path, "a.jsonl", b'{"t": 1}\n\n' + line + b'\n{"t": 4}\n')
    first, bad, last = read_file(file)
    assert (first.value, last.value) == ({"t": 1}, {"t": 4})
    assert (bad.place, bad.problem.reason, bad.value) == (f"{file}:3", reason, None)


def zstd(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


@pytest.mark.parametrize(("ending", "compress"), [(".gz", gzip.compress), (".zst", zstd)])
def test_compressed_files(tmp_path: Path, ending: str, compress: Callable[[bytes], bytes]) -> None:
    lines = write(tmp_path, f"a.jsonl{ending}", compress(b'{"t": 1}\n') + compress(b'{"t": 2}\n'))
    rows = list(read_file(lines))
    assert [(row.place, row.value) for row in rows] == [(f"{lines}:1", {"t": 1}), (f"{lines}:2", {"t": 2})]
    assert rows[-1].share_read == 1.0
    document = write(tmp_path, f"a.JSON{ending.upper()}", compress(b'[{"t": 1}, {"t": 2}]'))
    table = write(tmp_path, f"a.csv{ending}", compress(b"t\n1\n2\n"))
    assert [row.value for row in read_file(document)] == [{"t": 1}, {"t": 2}]
    assert [row.value for row in read_file(table)] == [{"t": "1"}, {"t": "2"}]
    assert len(find_files(str(tmp_path))) == 3


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        (".gz", b"not gzip"),
        (".gz", gzip.compress(b'{"t": 1}\n' * 500, mtime=0)[:-20]),
        (".zst", b"not zstd"),
        (".zst", zstd(b'{"t": 1}\n' * 500)[:-20]),
    ],
    ids=["not gzip", "gzip cut off", "not zstd", "zstd cut off"],
)
def test_a_damaged_archive_is_unreadable(tmp_path: Path, ending: str, content: bytes) -> None:
    file = write(tmp_path, f"a.jsonl{ending}", content)
    with pytest.raises(DataError, match="can't be read") as caught:
        list(read_file(file))
    assert caught.value.where == str(file)


@pytest.mark.parametrize(
    ("document", "rows"),
    [
        ([{"messages": []}, {"messages": [1]}], [{"messages": []}, {"messages": [1]}]),
        ({"version": 1, "data": [{"t": 1}]}, [{"t": 1}]),
        ({"messages": [{"role": "user"}], "tools": []}, [{"messages": [{"role": "user"}], "tools": []}]),
        ([], []),
    ],
)
def test_json_documents(tmp_path: Path, document: object, rows: list[object]) -> None:
    file = write(tmp_path, "a.json", b"\xef\xbb\xbf" + json.dumps(document).encode())
    assert [row.value for row in read_file(file)] == rows


@pytest.mark.parametrize(
    ("content", "where", "what", "fix"),
    [
        (b'[{"t": 1},\n {"t": 2]', ":2", "not JSON", "Check"),
        (b'{"t": 1}\n{"t": 2}\n', ":2", "Extra data", ".jsonl"),
        (b'{"a": [], "b": []}', "", "neither a list of rows", "messages"),
        (b"3", "", "neither a list of rows", "messages"),
        (b'["\xff"]', "", "not UTF-8", "UTF-8"),
    ],
)
def test_bad_json_documents(tmp_path: Path, content: bytes, where: str, what: str, fix: str) -> None:
    file = write(tmp_path, "a.json", content)
    with pytest.raises(DataError, match=what) as caught:
        list(read_file(file))
    assert caught.value.where == f"{file}{where}"
    assert fix in caught.value.fix


def test_parquet_rows_without_invented_nulls(tmp_path: Path) -> None:
    call = {"name": "f", "arguments": {"x": 1}}
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    other = [{"role": "assistant", "content": "yes", "tool_calls": [{"name": "g", "arguments": {"y": [None, 2]}}]}]
    file = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([{"messages": messages}, {"messages": other}]), file)
    rows = list(read_file(file))
    assert [row.value for row in rows] == [{"messages": messages}, {"messages": other}]
    assert [row.place for row in rows] == [f"{file}:1", f"{file}:2"]


@pytest.mark.parametrize("nested", [False, True])
def test_text_of_parquet_that_is_not_utf8_is_a_bad_row(tmp_path: Path, nested: bool) -> None:
    """Arrow takes a file's word for it that a column holds UTF-8."""
    offsets = pa.py_buffer(np.array([0, 2, 5, 7], dtype=np.int32))
    column = pa.StringArray.from_buffers(3, offsets, pa.py_buffer(b"hi" + b"a\xffb" + b"ho"))
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"t": pa.StructArray.from_arrays([column], ["u"]) if nested else column}), file)
    rows = list(read_file(file))
    values = [{"u": text} if nested else text for text in ("hi", "ho")]
    assert [row.value for row in rows] == [{"t": values[0]}, None, {"t": values[1]}]
    assert [row.place for row in rows] == [f"{file}:{number}" for number in (1, 2, 3)]
    assert str(rows[1].problem) == "not UTF-8: invalid start byte at byte 2 of a text"


@pytest.mark.parametrize("cut", [0, 10, 200])
def test_a_damaged_parquet_file(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([{"t": "x" * 500}]), file)
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(DataError, match="Parquet") as caught:
        list(read_file(file))
    assert caught.value.where == str(file)


def test_without_nulls_keeps_content_and_items_of_lists() -> None:
    row = {"a": None, "content": None, "b": [{"c": None, "d": 0}, None]}
    assert without_nulls(row) == {"content": None, "b": [{"d": 0}, None]}


def test_folders_and_globs_are_sorted(tmp_path: Path) -> None:
    names = ["b.jsonl", "a.parquet", "deep/c.json", ".hidden/x.jsonl", "README.md", "deep/.x.jsonl"]
    for name in names:
        write(tmp_path, name, b"x")
    assert find_files(str(tmp_path)) == [tmp_path / "a.parquet", tmp_path / "b.jsonl", tmp_path / "deep/c.json"]
    assert find_files(f"{tmp_path}/*.jsonl") == [tmp_path / "b.jsonl"]
    assert find_files(f"{tmp_path}/**/*.json*") == [tmp_path / "b.jsonl", tmp_path / "deep/c.json"]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path: Path) -> None:
    file = write(tmp_path, "chat[1].jsonl", b"x")
    assert find_files(str(file)) == [file]


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("missing.jsonl", "no such file"),
        ("*.parquet", "no file matches"),
        ("empty", "holds no data file"),
        ("notes.txt", "not a supported kind"),
        ("note*", "not a supported kind"),
    ],
)
def test_nothing_to_read_is_an_error_with_a_remedy(tmp_path: Path, path: str, what: str) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path, "notes.txt", b"x")
    with pytest.raises(DataError, match=what) as caught:
        find_files(str(tmp_path / path))
    assert caught.value.exit_code == 3
    assert caught.value.where
    assert caught.value.fix


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    file = write(tmp_path, name, b'{"t": 1}\n')
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(pq, "ParquetFile", refuse)
    with pytest.raises(DataError, match=r"can't be read: .*Permission denied") as caught:
        list(read_file(file))
    assert caught.value.where == str(file)


def test_a_number_too_long_to_read_is_a_bad_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": ' + "1" * 5000 + "}\n")
    assert [row.problem is not None for row in read_file(tmp_path / "a.jsonl")] == [True]
    (tmp_path / "a.json").write_text("[" + "1" * 5000 + "]")
    with pytest.raises(DataError, match="not JSON that can be read"):
        list(read_file(tmp_path / "a.json"))


def test_a_deeply_nested_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="not JSON"):
        list(read_file(tmp_path / "a.json"))


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match="not a regular file"):
        find_files(str(tmp_path / "a.jsonl"))
