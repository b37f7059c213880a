"""metrics.jsonl as columns of numbers: half written, of an older version, or with fields of a newer one."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MOST = 1e300
"""Larger is no measurement; JSON knows integers that no float holds."""
_LEAST = 1 / _MOST
_MOST_STEPS = 2**53
_NOT_DRAWN = ("step", "batch_hash")


@dataclass
class Series:
    """One number over the steps."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, step: int, value: float) -> None:
        self.steps.append(step)
        self.values.append(value)

    def cut_back(self, before: int) -> None:
        """Takes away what belongs to this step and to later ones."""
        while self.steps and self.steps[-1] >= before:
            self.steps.pop()
            self.values.pop()

    def __len__(self) -> int:
        return len(self.steps)


@dataclass
class Word:
    """A word that a field of the log had in some steps, as a reason for lower clocks is one."""

    lines: int
    first_step: int
    last_step: int


@dataclass
class Metrics:
    """All of a file. A step that was taken again, after a restart, counts as it was the last time."""

    series: dict[str, Series] = field(default_factory=dict)
    """By key, in the order of their first line; `real_share` beside them."""
    evaluations: Series = field(default_factory=Series)
    words: dict[str, dict[str, Word]] = field(default_factory=dict)
    """By key and word."""
    not_finite: list[int] = field(default_factory=list)
    """Steps whose loss or gradient norm was no number."""
    others: list[dict[str, Any]] = field(default_factory=list)
    """Lines with an `event`, the last of which may say `done`."""
    unreadable: int = 0
    """Lines that are no JSON objects; a last one that is being written is none of them."""
    last_step: int | None = None

    @property
    def done(self) -> dict[str, Any] | None:
        """The totals of a run that reached its end."""
        return next((line for line in reversed(self.others) if line["event"] == "done"), None)


def read_metrics(path: Path) -> Metrics:
    """Reads a line at a time; nothing where there is no file."""
    metrics = Metrics()
    if path.is_file():
        for line in _lines(path, metrics):
            _take(metrics, line)
    return metrics


def number_of(value: Any) -> float | None:
    """A finite number, or None; true and false are none."""
    kind = type(value)  # of a parsed file; isinstance with a union is slow, and this is asked of millions
    if (kind is float or kind is int) and -_MOST < value < _MOST:
        return float(value) if abs(value) > _LEAST else 0.0
    return None


def _lines(path: Path, metrics: Metrics) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                line = None
            if isinstance(line, dict):
                yield line
            elif text.endswith("\n") and text.strip():
                metrics.unreadable += 1


def _take(metrics: Metrics, line: dict[str, Any]) -> None:
    if "event" in line:
        metrics.others.append(line)
        return
    step = line.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < _MOST_STEPS:
        metrics.unreadable += 1
    elif "loss" in line:
        _take_step(metrics, step, line)
    elif (loss := number_of(line.get("eval_loss"))) is not None:
        metrics.evaluations.cut_back(step)
        metrics.evaluations.add(step, loss)


def _take_step(metrics: Metrics, step: int, line: dict[str, Any]) -> None:
    if metrics.last_step is not None and step <= metrics.last_step:
        for series in metrics.series.values():
            series.cut_back(step)
        metrics.evaluations.cut_back(step)
        metrics.not_finite = [bad for bad in metrics.not_finite if bad < step]
    metrics.last_step = step
    if line["loss"] is None or line.get("grad_norm", 0) is None:
        metrics.not_finite.append(step)
    slots, tokens = number_of(line.get("slots")), number_of(line.get("tokens"))
    if slots and tokens is not None:
        line = {**line, "real_share": tokens / slots}
    for key, value in line.items():
        if key in _NOT_DRAWN:
            continue
        number = number_of(value)
        if number is not None:
            if key not in metrics.series:
                metrics.series[key] = Series()
            metrics.series[key].add(step, number)
        elif isinstance(value, list | str):
            _take_words(metrics.words.setdefault(key, {}), step, value)


def _take_words(words: dict[str, Word], step: int, value: list[Any] | str) -> None:
    for word in [value] if isinstance(value, str) else value:
        if isinstance(word, str):
            seen = words.setdefault(word, Word(0, step, step))
            seen.lines, seen.last_step = seen.lines + 1, step
