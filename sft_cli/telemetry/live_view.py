"""The live line on a terminal. Imports rich, so only where there is one."""

from __future__ import annotations

import os
from dataclasses import replace
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sft_cli.telemetry.progress import Progress, format_duration
from sft_cli.telemetry.records import EvaluationRecord, StepRecord
from sft_cli.telemetry.terminal import TerminalView

_BAR_CELLS = 20
_GAP = 2
_UNKNOWN_WIDTH = 80
"""For a terminal that says it has no columns, as one without a window does."""


class LiveView(TerminalView):
    """One line that changes in place; messages and evaluations scroll above it."""

    def __init__(self, stream: TextIO, total_steps: int) -> None:
        self._stream = stream
        self._progress = Progress(total_steps)
        self._console = Console(file=stream, force_terminal=True, highlight=False, soft_wrap=False)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def __enter__(self) -> Self:
        self._fit_width()
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show_step(self, record: StepRecord) -> None:
        self._progress = self._progress.after(record)
        self._refresh()

    def show_evaluation(self, record: EvaluationRecord) -> None:
        self._progress = replace(self._progress, eval_loss=record.eval_loss)
        self.say(f"step {record.step}/{self._progress.total_steps}  eval loss {record.eval_loss:.4f}")
        self._refresh()

    def say(self, message: str) -> None:
        self._console.print(Text(message), soft_wrap=True)

    def _refresh(self) -> None:
        self._fit_width()
        self._live.update(render(self._progress, self._console.width), refresh=True)

    def _fit_width(self) -> None:
        # rich asks descriptors 0 to 2 for the size, and a worker's are files by now.
        self._console.width = os.get_terminal_size(self._stream.fileno()).columns or _UNKNOWN_WIDTH


def render(progress: Progress, width: int) -> Table:
    """One line: a bar, and beside it what `Progress.describe` says, the smoothed loss first.

    Args:
        width: columns of the terminal; where not all fits, whole cells are left out, the least telling first.
    """
    cells: list[ProgressBar | Text] = [ProgressBar(progress.total_steps, progress.step, width=_BAR_CELLS)]
    cells.append(Text(f"step {progress.step}/{progress.total_steps}", style="bold"))
    least_telling_first = cells[:1]
    if progress.smoothed_loss is not None:
        cells.append(Text.assemble("loss ", (f"{progress.smoothed_loss:.4f}", "bold cyan")))
        cells.append(Text(f"(last {progress.loss:.4f})"))
        least_telling_first.insert(0, cells[-1])
    if progress.eval_loss is not None:
        cells.append(Text(f"eval {progress.eval_loss:.4f}", style="magenta"))
        least_telling_first.append(cells[-1])
    if progress.tokens_per_second is not None:
        cells.append(Text(f"{progress.tokens_per_second:,.0f} tok/s", style="green"))
    if progress.learning_rate is not None:
        cells.append(Text(f"lr {progress.learning_rate:.1e}", style="dim"))
        least_telling_first.insert(1, cells[-1])
    if progress.seconds_left is not None:
        cells.append(Text(f"{format_duration(progress.seconds_left)} left"))
    while sum(map(_columns, cells)) > width and least_telling_first:
        cells.remove(least_telling_first.pop(0))
    line = Table.grid(padding=(0, _GAP, 0, 0))
    for cell in cells:
        line.add_column(no_wrap=True, overflow="crop", width=_columns(cell) - _GAP)
    line.add_row(*cells)
    return line


def _columns(cell: ProgressBar | Text) -> int:
    return (_BAR_CELLS if isinstance(cell, ProgressBar) else cell.cell_len) + _GAP
