"""Weights & Biases. What it keeps on this machine lies in `trackers/wandb` of the run folder, or in `WANDB_DIR`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

import wandb

from sft_cli.telemetry.trackers.tracker import End, Opening, Point, Tracker


def open_tracker(opening: Opening) -> Tracker:
    return WeightsAndBiases(opening)


class WeightsAndBiases(Tracker):
    def __init__(self, opening: Opening) -> None:
        self.run_id = opening.run_id or secrets.token_hex(4)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "sftune",
            id=self.run_id,
            name=os.environ.get("WANDB_NAME") or opening.run_name,
            config=opening.config,
            dir=os.environ.get("WANDB_DIR") or opening.folder,
            resume="allow",
            # Neither this process's output nor the folder's git remote, which may hold a password.
            settings=wandb.Settings(console="off", disable_git=True, disable_code=True, silent=True),
        )

    def log(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log(dict(point.values), step=point.step)

    def finish(self, end: End) -> None:
        self._run.finish(exit_code=0 if end == "finished" else 1)
