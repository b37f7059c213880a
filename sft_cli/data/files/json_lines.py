"""JSON lines: one object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator

from sft_cli.data.files.compression import open_stream
from sft_cli.data.files.data_file import DataFile
from sft_cli.data.json_text import parse_json
from sft_cli.data.raw import BadRow, RawRow

_ONE_OBJECT = "A .jsonl file holds one JSON object a line."
_NUL = "Remove it; a crash or a full disk leaves such bytes where a line was to be written."


def read_json_lines(file: DataFile) -> Iterator[RawRow]:
    """A line that is not UTF-8 or not JSON is a row with a problem; blank lines are none."""
    with open_stream(file) as (stream, share_read):
        # Bytes are split on \n alone: U+2028 and its like, which str.splitlines would cut at, are text.
        for number, line in enumerate(stream, start=1):
            place, share = f"{file}:{number}", share_read()
            try:
                # A byte-order mark in the middle is what `cat` leaves of files that begin with one.
                text = line.decode("utf-8-sig").strip(" \t\r\n")
                if text:
                    yield RawRow(place, parse_json(text), share)
            except UnicodeDecodeError as error:
                problem = BadRow(
                    "not UTF-8", f"{error.reason} at byte {error.start + 1} of the line", "Save it as UTF-8."
                )
                yield RawRow(place, None, share, problem)
            except (ValueError, RecursionError) as error:  # ValueError too: a number of more than 4,300 digits
                # A line of a file has no lines of its own: json's count of them would only confuse.
                if isinstance(error, json.JSONDecodeError):
                    what, fix = f"{error.msg.removesuffix(' at')} at column {error.colno}", _ONE_OBJECT
                else:
                    what, fix = str(error), "Correct the line."
                if "\0" in text:
                    what, fix = f"a NUL byte, the first at column {text.index(chr(0)) + 1}", _NUL
                yield RawRow(place, None, share, BadRow("not JSON", what, fix))
