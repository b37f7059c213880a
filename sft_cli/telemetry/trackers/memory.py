"""What the run folder remembers of a tracker: its run there, and how far each curve has come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sft_cli.plan.synced import replace_text
from sft_cli.telemetry.trackers.tracker import Point


class Memory:
    """Args:
    folder: of all trackers of a run.
    name: of the tracker.
    is_resumed: a run that begins has no memory, whatever lies there.
    """

    def __init__(self, folder: Path, name: str, *, is_resumed: bool) -> None:
        self._path = folder / f"{name}.json"
        self.run_id: str | None = None
        self._last_steps: dict[str, int] = {}
        if is_resumed and self._path.exists():
            values = json.loads(self._path.read_text(encoding="utf-8"))
            self.run_id, self._last_steps = values["run_id"], values["last_steps"]

    def new(self, points: Sequence[Point]) -> list[Point]:
        """Without what the tracker has had before."""
        return [point for point in map(self._new_of, points) if point.values]

    def note(self, run_id: str, points: Sequence[Point] = ()) -> None:
        """The tracker has taken them."""
        self.run_id = run_id
        for point in points:
            self._last_steps.update(dict.fromkeys(point.values, point.step))
        replace_text(self._path, json.dumps({"run_id": run_id, "last_steps": self._last_steps}) + "\n")

    def _new_of(self, point: Point) -> Point:
        kept = {name: value for name, value in point.values.items() if point.step > self._last_steps.get(name, -1)}
        return replace(point, values=kept)
