"""What rank 0 shows while a run is on: a live line on a terminal, plain lines anywhere else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self, TextIO

from sft_cli.telemetry.detachable_stream import detachable
from sft_cli.telemetry.progress import Progress
from sft_cli.telemetry.records import EvaluationRecord, StepRecord

_SECONDS_BETWEEN_LINES = 1.0
_SHORT_RUN_STEPS = 50
"""A run up to this long shows every step that is logged."""


class TerminalView(AbstractContextManager["TerminalView"], Protocol):
    """Enter it before the first call; leaving it gives the terminal back."""

    def show_step(self, record: StepRecord) -> None: ...

    def show_evaluation(self, record: EvaluationRecord) -> None: ...

    def say(self, message: str) -> None:
        """A line that stays: `checkpoint saved`."""


def open_view(stream: TextIO | None, total_steps: int, note: Callable[[str], None] | None = None) -> TerminalView:
    """The view that fits the stream; None (ranks other than 0) shows nothing.

    Args:
        note: is also given every message that is said.
    """
    if stream is None:
        return SilentView()
    view = _view(stream, total_steps)
    return view if note is None else NotedView(view, note)


def _view(stream: TextIO, total_steps: int) -> TerminalView:
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        from sft_cli.telemetry.live_view import LiveView

        return LiveView(detachable(stream), total_steps)
    return PlainView(detachable(stream), total_steps)


class PlainView(TerminalView):
    """Lines for a file or a pipe: no colour, no wrapping, about one a second."""

    def __init__(self, stream: TextIO, total_steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._progress = Progress(total_steps)
        self._shown_at = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.flush()

    def show_step(self, record: StepRecord) -> None:
        self._progress = self._progress.after(record)
        is_last = record.step == self._progress.total_steps
        is_due = self._clock() - self._shown_at >= _SECONDS_BETWEEN_LINES
        if is_due or is_last or self._progress.total_steps <= _SHORT_RUN_STEPS:
            self._shown_at = self._clock()
            # The loss of an evaluation has had its own line.
            self.say(replace(self._progress, eval_loss=None).describe())

    def show_evaluation(self, record: EvaluationRecord) -> None:
        self.say(f"step {record.step}/{self._progress.total_steps}  eval loss {record.eval_loss:.4f}")

    def say(self, message: str) -> None:
        self._stream.write(message + "\n")
        self._stream.flush()


class NotedView(TerminalView):
    """Another view whose messages are kept elsewhere too."""

    def __init__(self, view: TerminalView, note: Callable[[str], None]) -> None:
        self._view = view
        self._note = note

    def __enter__(self) -> Self:
        self._view.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._view.__exit__(kind, error, trace)

    def show_step(self, record: StepRecord) -> None:
        self._view.show_step(record)

    def show_evaluation(self, record: EvaluationRecord) -> None:
        self._view.show_evaluation(record)

    def say(self, message: str) -> None:
        self._note(message)
        self._view.say(message)


class SilentView(TerminalView):
    """Ranks that have no terminal."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show_step(self, record: StepRecord) -> None:
        pass

    def show_evaluation(self, record: EvaluationRecord) -> None:
        pass

    def say(self, message: str) -> None:
        pass
