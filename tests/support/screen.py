"""A terminal that remembers what it shows: enough of one for what the live view writes."""

from __future__ import annotations

import re

_PIECE = re.compile(r"\x1b\[\??(?P<number>\d*)(?:;\d+)*(?P<code>[A-Za-z])|(?P<text>.)", re.DOTALL)


class Screen:
    """Rows of text; a line that is longer than the screen is wide goes on in the next row."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows = [""]
        self.at = (0, 0)
        """Row and column of the cursor."""
        self.shows_cursor = True
        self.folded = False
        """A line has been longer than the screen."""

    def take(self, written: str) -> None:
        for piece in _PIECE.finditer(written):
            row, column = self.at
            match piece["code"], piece["text"]:
                case "A", _:
                    self.at = (max(0, row - int(piece["number"] or 1)), column)
                case "J", _:
                    self.rows = [*self.rows[:row], self.rows[row][:column]]
                case "m", _:
                    pass
                case "l" | "h", _:
                    self.shows_cursor = piece["code"] == "h"
                case _, "\r":
                    self.at = (row, 0)
                case _, "\n":
                    self._go_to(row + 1)
                case _, str(letter):
                    self._put(letter)
                case _:
                    raise AssertionError(f"unknown: {piece[0]!r}")

    def shown(self) -> list[str]:
        return [row.rstrip() for row in self.rows]

    def _go_to(self, row: int) -> None:
        self.at = (row, 0)
        if row == len(self.rows):
            self.rows.append("")

    def _put(self, letter: str) -> None:
        row, column = self.at
        if column == self.columns:
            self.folded = True
            self._go_to(row + 1)
            row, column = self.at
        line = self.rows[row].ljust(column)
        self.rows[row] = line[:column] + letter + line[column + 1 :]
        self.at = (row, column + 1)
