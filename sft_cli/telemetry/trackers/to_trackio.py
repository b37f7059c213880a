"""Trackio: to its folder on this machine, or where `TRACKIO_SPACE_ID` and `TRACKIO_SERVER_URL` say."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

import trackio

from sft_cli.telemetry.trackers.tracker import End, Opening, Point, Tracker


def open_tracker(opening: Opening) -> Tracker:
    return Trackio(opening)


class Trackio(Tracker):
    def __init__(self, opening: Opening) -> None:
        # It finds a run by its name, so that has to be one of its own.
        self.run_id = opening.run_id or f"{opening.run_name}-{secrets.token_hex(3)}"
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT") or "sftune",
            name=self.run_id,
            config=opening.config,
            resume="allow",
            embed=False,
        )

    def log(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log(dict(point.values), step=point.step)

    def finish(self, end: End) -> None:
        self._run.finish()
