"""All trackers of a run, beside metrics.jsonl. Rank 0 only."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sft_cli.redaction import redacted
from sft_cli.telemetry.metrics_file import values_of
from sft_cli.telemetry.records import DoneRecord, EvaluationRecord, StepRecord
from sft_cli.telemetry.trackers.points import point_of
from sft_cli.telemetry.trackers.process import TrackerProcess
from sft_cli.telemetry.trackers.tracker import End, Opening

FLUSH_SECONDS: dict[End, float] = {"finished": 30.0, "stopped": 10.0, "failed": 5.0}
"""How long the end of a run waits for all of them together; a scheduler that stops it, or other ranks, wait too."""


class Trackers:
    """While entered, records that are written reach every tracker. None of them ever stops or holds up a run.

    Args:
        names: of `telemetry.trackers`.
        opening: what they are told first.
        logs: the folder that takes what their packages print.
        say: tells the user; called in `write` and on leaving alone.
    """

    def __init__(self, names: Sequence[str], opening: Opening, logs: Path, say: Callable[[str], None]) -> None:
        self._names = tuple(dict.fromkeys(names))
        self._opening = opening
        self._logs = logs
        self._say = say
        self._end: End = "stopped"
        self._processes: list[TrackerProcess] = []

    def __enter__(self) -> Self:
        for name in self._names:
            try:
                self._opening.folder.mkdir(exist_ok=True)
                self._processes.append(TrackerProcess(name, self._opening, self._logs / f"tracker-{name}.log"))
            except OSError as error:  # no more processes, or a full disk: the run will meet that itself, or not
                self._say(f"WARNING: tracker {name} can't be started: {error}; metrics.jsonl has every step")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end: End = self._end if error is None else "failed"
        deadline = time.monotonic() + FLUSH_SECONDS[end]
        for process in self._processes:
            process.end(end)
        for process in self._processes:
            process.finish(max(0.0, deadline - time.monotonic()))
        self._tell()

    def write(self, record: StepRecord | EvaluationRecord | DoneRecord) -> None:
        if isinstance(record, DoneRecord):
            self._end = "finished"
        point = point_of(values_of(record))
        if point is not None:
            for process in self._processes:
                process.send(point)
        self._tell()

    def _tell(self) -> None:
        for process in self._processes:
            for complaint in process.complaints():
                self._say(complaint)


def config_of(recipe: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """A recipe key by dotted key, as trackers show it, and without anything that looks like a secret."""
    return dict(_flat("", recipe))


def _flat(key: str, value: Any) -> list[tuple[str, str | int | float | bool]]:
    if isinstance(value, Mapping):
        return [item for name, inner in value.items() for item in _flat(f"{key}.{name}" if key else name, inner)]
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        return [item for index, inner in enumerate(value) for item in _flat(f"{key}.{index}", inner)]
    if isinstance(value, bool | int | float):
        return [(key, value)]
    return [(key, redacted(str(value)))]
