"""JSON lines: one object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from sft_cli.data.files.compression import open_stream
from sft_cli.data.raw import BadRow, RawRow


def read_json_lines(file: Path) -> Iterator[RawRow]:
    """A line that is not UTF-8 or not JSON is a row with a problem; blank lines are none."""
    with open_stream(file) as (stream, share_read):
        # Bytes are split on \n alone: U+2028 and its like, which str.splitlines would cut at, are text.
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            place, share = f"{file}:{number}", share_read()
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
