"""A tracker's process as rank 0 sees it: fed by a thread from a queue that has an end, and never waited for."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from sft_cli.redaction import redacted
from sft_cli.telemetry.trackers.tracker import End, Opening, Point

_MOST_WAITING = 10_000
"""Points; a step makes one or two."""


class TrackerProcess:
    """Nothing that its tracker does raises here, nor makes a caller wait, but for `finish` within its bound.

    Args:
        name: of the tracker.
        log: takes what its package prints, without secrets.
        command: that is run; default: the tracker of this name.
    """

    def __init__(self, name: str, opening: Opening, log: Path, command: Sequence[str] | None = None) -> None:
        self._name = name
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._said: list[str] = []
        self._has_failed = False
        self._is_late = False
        self._log = log
        self._process = subprocess.Popen(
            command or [sys.executable, "-m", "sft_cli.telemetry.trackers", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        streams = self._process.stdin, self._process.stdout, self._process.stderr
        self._waiting.put({"opening": opening.as_json()})
        self._threads = [
            threading.Thread(target=target, args=(stream,), name=f"tracker {name}", daemon=True)
            for target, stream in zip((self._feed, self._listen, self._write_log), streams, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, point: Point) -> None:
        """Never waits: what the tracker has no time for is dropped, and that is told."""
        if self._waiting.qsize() < _MOST_WAITING:
            self._waiting.put({"step": point.step, "values": dict(point.values)})
            return
        if not self._is_late:
            self._say("does not keep up: steps will be missing there")
        self._is_late = True

    def complaints(self) -> list[str]:
        """What is to be told since the last call."""
        said, self._said = self._said, []
        return said

    def end(self, end: End) -> None:
        """Nothing is sent after it."""
        self._waiting.put({"end": end})
        self._waiting.put(None)

    def finish(self, seconds: float) -> None:
        """Waits so long for it to bring all home, and ends it then."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._has_failed = True  # that it was killed is not to be told beside it
            self._process.kill()
            self._process.wait()
            self._say("was not done in time after the last step: what it had not sent by then is missing there")
        # The pipes are closed by now, unless the tracker left a process of its own behind.
        for thread in self._threads[1:]:
            thread.join(timeout=1)

    def _feed(self, stream: IO[str]) -> None:
        is_open = True
        while (message := self._waiting.get()) is not None:
            if is_open:
                # Not through the stream: what its buffer holds when the pipe breaks would be an error once more later.
                left = (json.dumps(message) + "\n").encode()
                try:
                    while left:
                        left = left[os.write(stream.fileno(), left) :]
                except BrokenPipeError:  # it has ended, and why is said where that is noticed
                    is_open = False
        stream.close()

    def _listen(self, stream: IO[str]) -> None:
        for line in stream:
            if not line.startswith("{"):
                continue  # printed by what starts with every Python here, before the tracker had its own way out
            message = json.loads(line)
            if "failed" in message:
                self._fail(message["failed"])
            elif "lost" in message:
                self._say(f"lost {message['lost']} points in all")
        if self._process.wait():
            self._fail(f"its process ended with {self._process.returncode}")

    def _fail(self, words: str) -> None:
        if not self._has_failed:
            self._say(f"failed: {words} (more in {self._log})")
        self._has_failed = True

    def _say(self, words: str) -> None:
        self._said.append(
            f"WARNING: tracker {self._name} {words}; training is not touched by it, and metrics.jsonl has every step"
        )

    def _write_log(self, stream: IO[str]) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            for line in stream:
                log.write(redacted(line))
                log.flush()
