"""The live view on a terminal: lines that change in place, below those that stay. Imports rich, so only where there
is one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.text import Text

from sft_cli.telemetry.live_lines import live_lines
from sft_cli.telemetry.progress import Progress
from sft_cli.telemetry.records import EvaluationRecord, StepRecord
from sft_cli.telemetry.terminal import TerminalView

_UNKNOWN_COLUMNS, _UNKNOWN_ROWS = 80, 24
"""For a terminal that says it has none, as one without a window does."""
_SECONDS_BETWEEN_FRAMES = 0.1
_ROWS_FOR_OTHERS = 3
"""Rows of the terminal that stay free for what was said."""
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_CLEAR_BELOW = "\r\x1b[J"


class LiveView(TerminalView):
    """A block of lines that changes in place; messages and evaluations scroll above it.

    The cursor rests at the beginning of an empty row above the block. So what another process writes (the launcher,
    Ctrl-C) lands there and stays, and a terminal that was made narrower takes the cursor along with the block's
    beginning: whatever it has folded since is below, and is cleared. Each frame is one write.
    """

    def __init__(self, stream: TextIO, total_steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._progress = Progress(total_steps)
        self._console = Console(file=stream, force_terminal=True, highlight=False)
        self._drawn_at = float("-inf")

    def __enter__(self) -> Self:
        self._write(_HIDE_CURSOR)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write(_CLEAR_BELOW + "".join(f"{line}\n" for line in self._lines()) + _SHOW_CURSOR)

    def show_step(self, record: StepRecord) -> None:
        self._progress = self._progress.after(record)
        # A terminal shows no more of them, and one over ssh would be flooded.
        if self._clock() - self._drawn_at >= _SECONDS_BETWEEN_FRAMES:
            self._draw()

    def show_evaluation(self, record: EvaluationRecord) -> None:
        self._progress = replace(self._progress, eval_loss=record.eval_loss)
        self.say(f"step {record.step}/{self._progress.total_steps}  eval loss {record.eval_loss:.4f}")

    def say(self, message: str) -> None:
        # Not folded: the terminal does that, and a path that is copied stays whole. Text drops control codes.
        self._draw(above=f"{Text(message).plain}\n")

    def _draw(self, above: str = "") -> None:
        self._drawn_at = self._clock()
        lines = self._lines()
        block = "".join(f"\n{line}" for line in lines)
        back = f"\x1b[{len(lines)}A\r" if lines else ""
        self._write(_CLEAR_BELOW + above + block + back)

    def _lines(self) -> list[str]:
        """The block as text with colours; nothing before the first step."""
        if self._progress.loss is None:
            return []
        # rich asks descriptors 0 to 2 for the size, and a worker's are files by now.
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except OSError:  # the terminal is gone, which must not end the run: writing finds that out by itself
            size = os.terminal_size((0, 0))
        # One less than there are: at the last column some terminals are already in the next row.
        lines = live_lines(self._progress, (size.columns or _UNKNOWN_COLUMNS) - 1)
        return [self._coloured(line) for line in lines[: max(1, (size.lines or _UNKNOWN_ROWS) - _ROWS_FOR_OTHERS)]]

    def _coloured(self, line: Text) -> str:
        with self._console.capture() as captured:
            self._console.print(line, end="", soft_wrap=True)
        return captured.get()

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
