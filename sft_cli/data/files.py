"""Rows from local files: JSON lines, JSON and Parquet, each with its place."""

from __future__ import annotations

import glob
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sft_cli.data.raw import BadRow, RawRow
from sft_cli.errors import DataError

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
ROW_COLUMNS = ("messages", "conversations")
"""An object of a .json file with one of these is a row itself, not a wrapper around rows."""

_UNREADABLE = (OSError, EOFError, zlib.error)
"""What opening and reading raise: no permission, a broken disk, a damaged or cut archive."""


def find_files(path: str) -> list[Path]:
    """The files that a path, a folder (with its subfolders) or a glob stands for, sorted.

    Raises:
        DataError: nothing is there, or a file that was named is of no supported kind.
    """
    place = Path(path)
    if place.is_dir():
        files = sorted(
            file for file in place.rglob("*") if file.is_file() and _supported(file) and not _hidden(file, place)
        )
        if not files:
            raise DataError("the folder holds no data file", where=path, fix=f"Supported: {', '.join(SUFFIXES)}.")
        return files
    if place.exists():
        files = [place]
    else:
        files = sorted(Path(match) for match in glob.glob(path, recursive=True) if Path(match).is_file())
    if not files:
        is_glob = glob.escape(path) != path
        what = "no file matches the pattern" if is_glob else "no such file or folder"
        raise DataError(what, where=path, fix="Paths in a recipe are relative to the recipe's folder.")
    for file in files:
        if not file.is_file():
            raise DataError("not a regular file", where=str(file), fix="Write the data to a file first.")
        if not _supported(file):
            raise DataError(
                "not a supported kind of data file", where=str(file), fix=f"Supported: {', '.join(SUFFIXES)}."
            )
    return files


def read_file(file: Path) -> Iterator[RawRow]:
    """Read the rows of one file, in order. A line that is not JSON is a row with a problem.

    Raises:
        DataError: the file can't be read.
    """
    name = file.name.lower().removesuffix(".gz")
    try:
        if name.endswith(".jsonl"):
            yield from _read_json_lines(file)
        elif name.endswith(".json"):
            yield from _read_json(file)
        else:
            yield from _read_parquet(file)
    except _UNREADABLE as error:
        raise DataError(
            f"can't be read: {error}", where=str(file), fix="Check the file and its permissions."
        ) from error


def without_nulls(value: Any) -> Any:
    """Drop null fields, which columnar formats invent for every key another row has; a null `content` stays."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None or key == "content"}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _supported(file: Path) -> bool:
    return file.name.lower().endswith(SUFFIXES)


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _open(raw: io.FileIO, file: Path) -> io.BufferedIOBase:
    return gzip.GzipFile(fileobj=raw) if file.suffix.lower() == ".gz" else io.BufferedReader(raw)


def _read_json_lines(file: Path) -> Iterator[RawRow]:
    size = max(file.stat().st_size, 1)
    with file.open("rb", buffering=0) as raw, _open(raw, file) as stream:
        # Bytes are split on \n alone: U+2028 and its like, which str.splitlines would cut at, are text.
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            place, share = f"{file}:{number}", min(raw.tell() / size, 1.0)
            try:
                yield RawRow(place, json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8")), share)
            except UnicodeDecodeError as error:
                problem = BadRow(
                    "not UTF-8", f"{error.reason} at byte {error.start + 1} of the line", "Save it as UTF-8."
                )
                yield RawRow(place, None, share, problem)
            except (ValueError, RecursionError) as error:  # ValueError too: a number of more than 4,300 digits
                problem = BadRow("not JSON", str(error), "A .jsonl file holds one JSON object a line.")
                yield RawRow(place, None, share, problem)


def _read_json(file: Path) -> Iterator[RawRow]:
    with file.open("rb", buffering=0) as raw, _open(raw, file) as stream:
        content = stream.read()
    if not content.strip():
        return
    try:
        rows = _rows_of(json.loads(content.decode("utf-8-sig")), file)
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8: {error}", where=str(file), fix="Save it as UTF-8.") from error
    except json.JSONDecodeError as error:
        fix = "If it holds one object a line, name it .jsonl." if error.msg == "Extra data" else "Check the file."
        raise DataError(f"not JSON: {error}", where=f"{file}:{error.lineno}", fix=fix) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON that can be read: {error}", where=str(file), fix="Check the file.") from error
    for number, row in enumerate(rows, start=1):
        yield RawRow(f"{file}:{number}", row, number / len(rows))


def _rows_of(document: Any, file: Path) -> list[Any]:
    """A list is the rows; an object is one row, or holds the rows under its only key with a list."""
    if isinstance(document, list):
        return document
    if isinstance(document, dict):
        if any(column in document for column in ROW_COLUMNS):
            return [document]
        lists = [value for value in document.values() if isinstance(value, list)]
        if len(lists) == 1:
            return lists[0]
    raise DataError(
        "the JSON document is neither a list of rows nor an object with one list of rows",
        where=str(file),
        fix='Write [{"messages": [...]}, ...].',
    )


def _read_parquet(file: Path) -> Iterator[RawRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(file) as table:
            rows = max(table.metadata.num_rows, 1)
            for batch in table.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield RawRow(f"{file}:{number}", without_nulls(row), number / rows)
    except pa.ArrowException as error:
        raise DataError(
            f"not a readable Parquet file: {error}", where=str(file), fix="Fetch or write it anew."
        ) from error
