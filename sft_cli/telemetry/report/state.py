"""Where a run stands: done, on, stopped, failed, or gone without a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from sft_cli.telemetry.progress import format_duration
from sft_cli.telemetry.report.metrics import number_of
from sft_cli.telemetry.report.run_files import Document, RunFiles, dig

_LATELY = 100
"""Lines of the log that rates of the present are medians of."""
_TURNS = ("started", "stopped", "failed", "ended")


@dataclass(frozen=True)
class State:
    word: str
    kind: str
    """`good`, `note` or `bad`."""
    text: str


def state_of(run: RunFiles) -> State:
    """In one word and one sentence."""
    metrics = run.metrics
    last = next((event for event in reversed(run.events) if event.get("event") in _TURNS), None)
    turn = None if last is None else last["event"]
    if metrics.done is not None:
        return State("done", "good", "The run reached its end.")
    if run.is_on:
        if metrics.last_step is None:
            return State("starting", "note", "No step has been logged yet.")
        return State("running", "note", _running(run))
    if turn == "failed":
        return State("failed", "bad", str(dig(last, "what") or "The run failed."))
    if turn == "stopped":
        after = ", after a checkpoint" if run.saves else ""
        return State("stopped", "note", f"Stopped by {dig(last, 'signal')}{after}.{_go_on(run)}")
    if metrics.last_step is None:
        return State("not begun", "note", "No step has been logged.")
    if run.is_on is None:
        return State("not done", "note", f"{_written(run)} Whether it is still on can't be seen from here.")
    gone = "No process has the folder any more: it was killed."
    return State("broken off", "bad", f"{_written(run)} {gone}{_go_on(run)}")


def lately(run: RunFiles, key: str) -> float | None:
    """Median of a number over the last lines; None where there is none."""
    series = run.metrics.series.get(key)
    return median(series.values[-_LATELY:]) if series else None


def steps_planned(run: RunFiles) -> int | None:
    steps = number_of(dig(run.plan, "steps"))
    return None if steps is None else int(steps)


def failures(events: Sequence[Document]) -> list[dict[str, Any]]:
    """Errors that a session of the run ended with, the last first."""
    return [event for event in reversed(events) if event.get("event") == "failed"]


def _go_on(run: RunFiles) -> str:
    return " sftune train --resume goes on from its newest complete checkpoint." if run.saves else ""


def _running(run: RunFiles) -> str:
    planned, seconds, step = steps_planned(run), lately(run, "step_seconds"), run.metrics.last_step or 0
    if planned is None or seconds is None:
        return _written(run)
    return f"{_written(run)} About {format_duration(max(0, planned - step) * seconds)} of training left."


def _written(run: RunFiles) -> str:
    if run.written_at is None:
        return ""
    age = max(0.0, (run.now - run.written_at).total_seconds())
    return f"The last line was written {run.written_at:%Y-%m-%d %H:%M:%S}, {format_duration(age)} before this page."
