"""`python -m support.fake_tracker BEHAVIOUR FILE`: a tracker's process whose tracker writes what it gets to a file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sft_cli.telemetry.trackers.serve import serve
from sft_cli.telemetry.trackers.tracker import End, Opening, Point, Tracker

HOURS = 3600 * 24


class Fake(Tracker):
    def __init__(self, opening: Opening) -> None:
        self.behaviour, self.file = sys.argv[1], Path(sys.argv[2])
        if self.behaviour == "can't begin":
            raise RuntimeError("the server at https://me:hunter2@example.org says no\nand a second line")
        if self.behaviour == "never begins":
            time.sleep(HOURS)
        if self.behaviour == "crashes":
            raise SystemExit(7)
        self.run_id = opening.run_id or "first"
        self.replaces_steps = self.behaviour == "replaces"
        self.calls = 0
        print("a word of the package to https://me:hunter2@example.org")
        self.write({"resumed_at": opening.resumed_at, "run_id": opening.run_id, "config": opening.config})

    def log(self, points: Sequence[Point]) -> None:
        self.calls += 1
        if self.behaviour == "hangs":
            time.sleep(HOURS)
        if self.behaviour == "fails now and then" and self.calls % 2 == 0:
            raise ConnectionError(f"call {self.calls} did not reach it")
        for point in points:
            self.write({"step": point.step, "values": dict(point.values)})

    def finish(self, end: End) -> None:
        if self.behaviour == "never ends":
            time.sleep(HOURS)
        if self.behaviour == "can't end":
            raise OSError("the disk is full")
        self.write({"end": end})

    def write(self, message: dict[str, Any]) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps(message) + "\n")


if __name__ == "__main__":
    serve("fake", Fake)
