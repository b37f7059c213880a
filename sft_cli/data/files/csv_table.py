"""CSV with a header row: a cell a key. Chats stand in a cell as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from sft_cli.data.files.compression import open_stream
from sft_cli.data.files.data_file import DataFile
from sft_cli.data.json_text import parse_json
from sft_cli.data.raw import BadRow, RawRow
from sft_cli.errors import DataError

JSON_COLUMNS = ("messages", "conversations", "tools", "history")
"""Columns whose cells hold lists, which CSV can only write as text."""
LONGEST_CELL = 2**26
"""Characters. Without a bound a quote that nobody closes would swallow the rest of a file of any size."""

NEVER_CLOSED = "a quote that is never closed, and takes the rest of the file along"
_END_IN_QUOTES = "unexpected end of data"
"""What Python's module says then."""


def read_csv(file: DataFile) -> Iterator[RawRow]:
    """A record that is no CSV, or has too few or too many cells, is a row with a problem. Blank lines are none.

    A place is the line where a record begins: quoted cells may hold line breaks.

    Raises:
        DataError: the header can't be used.
    """
    csv.field_size_limit(LONGEST_CELL)  # of the process; the module's default of 131,072 is less than a long chat
    with open_stream(file) as (stream, share_read):
        lines = _Lines(stream)
        reader = csv.reader(lines, strict=True)
        header: list[str] | None = None
        while True:
            begin = lines.number + 1
            problem: BadRow | None = None
            cells: list[str] = []
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                problem = BadRow("not CSV", str(error), "A cell with quotes, commas or line breaks goes in quotes.")
                if str(error) == _END_IN_QUOTES and lines.number > begin:
                    detail = f"lines {begin} to {lines.number}"
                    problem = BadRow(NEVER_CLOSED, detail, "Close it, or double it where it belongs to the text.")
            problem = lines.problem() or problem
            if not cells and problem is None:
                continue
            if header is None:
                header = _checked_header(cells, problem, f"{file}:{begin}")
                continue
            value: dict[str, Any] | None = None
            if problem is None:
                try:
                    value = _row(header, cells)
                except BadRow as error:
                    problem = error
            yield RawRow(f"{file}:{begin}", value, share_read(), problem)


class _Lines:
    """Lines as text, counted, split on \\n alone. One that is not UTF-8 is kept in mind until `problem` is asked."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._stream = stream
        self._problem: BadRow | None = None
        self.number = 0
        """Lines read so far."""

    def __iter__(self) -> Iterator[str]:
        for line in self._stream:
            self.number += 1
            encoding = "utf-8-sig" if self.number == 1 else "utf-8"
            try:
                yield line.decode(encoding)
            except UnicodeDecodeError as error:
                detail = f"{error.reason} at byte {error.start + 1} of line {self.number}"
                self._problem = BadRow("not UTF-8", detail, "Save it as UTF-8.")
                yield line.decode(encoding, errors="replace")

    def problem(self) -> BadRow | None:
        """What was wrong with the lines since this was last asked."""
        problem, self._problem = self._problem, None
        return problem


def _checked_header(cells: list[str], problem: BadRow | None, where: str) -> list[str]:
    header = [cell.strip() for cell in cells]
    if problem is not None:
        raise DataError(f"the header is {problem}", where=where, fix=problem.fix)
    if "" in header or len(set(header)) < len(header):
        raise DataError(
            f"the first line is no header: {', '.join(header)}",
            where=where,
            fix="Give every column a name of its own there, such as prompt,completion.",
        )
    return header


def _row(header: list[str], cells: list[str]) -> dict[str, Any]:
    if len(cells) != len(header):
        raise BadRow("another number of cells than the header", f"{len(cells)} for {len(header)} columns")
    row: dict[str, Any] = {}
    for name, cell in zip(header, cells, strict=True):
        if name not in JSON_COLUMNS:
            row[name] = cell
        elif cell.strip():
            try:
                row[name] = parse_json(cell)
            except (ValueError, RecursionError) as error:
                fix = "Write the list as JSON text, not as Python prints it."
                raise BadRow(f"no JSON in column {name}", str(error), fix) from error
    return row
