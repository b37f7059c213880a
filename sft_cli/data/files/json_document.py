"""A .json file: one document, read whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sft_cli.data.files.compression import open_stream
from sft_cli.data.files.data_file import DataFile
from sft_cli.data.formats import detect
from sft_cli.data.json_text import parse_json
from sft_cli.data.raw import RawRow
from sft_cli.errors import DataError


def read_json(file: DataFile) -> Iterator[RawRow]:
    """The rows of a document, whose places count rows and not lines.

    Raises:
        DataError: it is no JSON, or holds no list of rows.
    """
    with open_stream(file) as (stream, _):
        content = stream.read()
    if not content.strip():
        return
    try:
        rows = _rows_of(parse_json(content.decode("utf-8-sig")), file)
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8: {error}", where=str(file), fix="Save it as UTF-8.") from error
    except json.JSONDecodeError as error:
        fix = "If it holds one object a line, name it .jsonl." if error.msg == "Extra data" else "Check the file."
        raise DataError(f"not JSON: {error}", where=f"{file}:{error.lineno}", fix=fix) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON that can be read: {error}", where=str(file), fix="Check the file.") from error
    for number, row in enumerate(rows, start=1):
        yield RawRow(f"{file}:{number}", row, number / len(rows))


def _rows_of(document: Any, file: DataFile) -> list[Any]:
    """A list is the rows; an object is one row, or holds the rows under its only key with a list of something."""
    if isinstance(document, list):
        return document
    if isinstance(document, dict):
        if detect(document) is not None:
            return [document]
        lists = [value for value in document.values() if isinstance(value, list) and value]
        if len(lists) == 1:
            return lists[0]
    raise DataError(
        "the JSON document is neither a list of rows nor an object with one list of rows",
        where=str(file),
        fix='Write [{"messages": [...]}, ...].',
    )
