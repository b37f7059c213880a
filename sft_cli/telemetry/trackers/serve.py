"""The process of a tracker: takes messages from its stdin, a JSON object a line, and answers on its stdout.

In: `{"opening"}`, then points `{"step", "values"}`, at the end `{"end"}`. Out: `{"failed"}` where something went wrong
the first time, `{"lost"}` with how many points it cost at the end. What the tracker itself prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TextIO

from sft_cli.redaction import redacted
from sft_cli.telemetry.trackers.memory import Memory
from sft_cli.telemetry.trackers.tracker import End, Opening, OpenTracker, Point, Tracker

_MOST_POINTS = 40
"""A call of `log`: MLflow takes 1,000 numbers in one."""
_SECONDS_ALONE = 60.0
"""For a tracker to finish whose run was killed."""


def serve(name: str, open_tracker: OpenTracker) -> None:
    """Runs one tracker until its messages end."""
    # A scheduler sends these to every process; the run tells when it is over.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    with _answers() as answers:
        messages = _messages()
        opening = Opening.from_json(next(messages)["opening"])
        memory = Memory(opening.folder, name, is_resumed=opening.resumed_at > 0)
        try:
            tracker = open_tracker(replace(opening, run_id=memory.run_id))
        except Exception as error:  # whatever a stranger's package raises: told, and never the run's end
            _tell(answers, failed=_words(error))
            sys.exit(1)
        memory.note(tracker.run_id)
        delivery = _Delivery(tracker, memory, answers)
        end: End = "failed"  # where nobody says so: the run was killed
        points: list[Point] = []
        for message in messages:
            if "end" in message:
                end = message["end"]
                break
            points.append(Point(message["step"], message["values"]))
            if not message["more"] or len(points) == _MOST_POINTS:
                delivery.log(points)
                points = []
        delivery.log(points)
        delivery.finish(end)


class _Delivery:
    """Points to a tracker. What one call costs is told once, and the next one is made all the same."""

    def __init__(self, tracker: Tracker, memory: Memory, answers: TextIO) -> None:
        self._tracker = tracker
        self._memory = memory
        self._answers = answers
        self._lost = 0

    def log(self, points: Sequence[Point]) -> None:
        new = points if self._tracker.replaces_steps else self._memory.new(points)
        if not new:
            return
        try:
            self._tracker.log(new)
        except Exception as error:  # as above
            if not self._lost:
                _tell(self._answers, failed=_words(error))
            self._lost += len(new)
            return
        self._memory.note(self._tracker.run_id, new)

    def finish(self, end: End) -> None:
        try:
            self._tracker.finish(end)
        except Exception as error:  # as above
            _tell(self._answers, failed=_words(error))
        if self._lost:
            _tell(self._answers, lost=self._lost)


@contextmanager
def _answers() -> Iterator[TextIO]:
    """Our own way out; what packages print goes to stderr."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        yield answers


def _tell(answers: TextIO, **message: str | int) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _words(error: Exception) -> str:
    lines = redacted(str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _messages() -> Iterator[dict[str, Any]]:
    """Read in a thread, so that the end of the run is noticed while the tracker is busy."""
    waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(maxsize=1000)

    def read() -> None:
        for line in sys.stdin:
            waiting.put(json.loads(line))
        waiting.put(None)
        leave = threading.Timer(_SECONDS_ALONE, os._exit, (1,))
        leave.daemon = True
        leave.start()

    threading.Thread(target=read, daemon=True).start()
    while (message := waiting.get()) is not None:
        yield {**message, "more": not waiting.empty()}
