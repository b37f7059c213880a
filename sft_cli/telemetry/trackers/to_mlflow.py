"""MLflow: to where `MLFLOW_TRACKING_URI` says, else to MLflow's own place in the working directory."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from sft_cli.telemetry.trackers.tracker import End, Opening, Point, Tracker

_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_PARAMS_A_CALL = 100


def open_tracker(opening: Opening) -> Tracker:
    return MLflow(opening)


class MLflow(Tracker):
    """By its client, which keeps nothing in module-level state."""

    def __init__(self, opening: Opening) -> None:
        self._client = MlflowClient()
        if opening.run_id is not None:
            self.run_id = opening.run_id
            self._client.update_run(self.run_id, status="RUNNING")
            return
        self.run_id = self._client.create_run(self._experiment(), run_name=opening.run_name).info.run_id
        params = [Param(key, str(value)) for key, value in opening.config.items()]
        for begin in range(0, len(params), _PARAMS_A_CALL):
            self._client.log_batch(self.run_id, params=params[begin : begin + _PARAMS_A_CALL])

    def log(self, points: Sequence[Point]) -> None:
        now_ms = int(time.time() * 1000)
        metrics = [Metric(name, value, now_ms, point.step) for point in points for name, value in point.values.items()]
        if metrics:
            self._client.log_batch(self.run_id, metrics=metrics)

    def finish(self, end: End) -> None:
        self._client.set_terminated(self.run_id, _STATUS[end])

    def _experiment(self) -> str:
        given = os.environ.get("MLFLOW_EXPERIMENT_ID")
        if given:
            return given
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "sftune"
        found = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if found is None else found.experiment_id)
