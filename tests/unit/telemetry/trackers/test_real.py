"""The packages themselves, each with a store on this machine; those that are not installed are skipped."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from sft_cli.plan.trackers import MODULES
from sft_cli.telemetry.trackers.process import TrackerProcess
from sft_cli.telemetry.trackers.tracker import Opening, Point

Run = Callable[..., None]
SECONDS = 300.0
"""Importing one takes up to half a minute where the machine has other work; making MLflow's tables as long again."""
CONFIG: dict[str, str | int | float | bool] = {"train.seed": 0, "model.path": "builtin:tiny-hybrid"}


def needs(name: str) -> pytest.MarkDecorator:
    spec = find_spec(MODULES[name])
    return pytest.mark.skipif(spec is None or spec.origin is None, reason=f"pip install 'sftune[{name}]'")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of some steps in a tracker, as a worker has it, with an evaluation at step 2; fails where it complains."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/own.db")
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "WANDB_MODE": "offline",
        "WANDB_ERROR_REPORTING": "false",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
    }.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "trackers"
    folder.mkdir()

    def take(name: str, steps: range, *, resumed_at: int = 0, shift: float = 0.0) -> None:
        process = TrackerProcess(name, Opening(folder, "my-run", CONFIG, resumed_at), tmp_path / f"{name}.log")
        for step in steps:
            process.send(Point(step, {"train/loss": 5.0 - step + shift, "system/gpu_power_w": 600.0 + step}))
            if step == 2:
                process.send(Point(step, {"eval/loss": 4.5}))
        process.end("finished")
        process.finish(SECONDS)
        assert process.complaints() == [], (tmp_path / f"{name}.log").read_text()
        assert "hf_" not in (folder / f"{name}.json").read_text()

    return take


@needs("tensorboard")
def test_tensorboard(run: Run, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def curve(tag: str) -> list[tuple[int, float]]:
        found = EventAccumulator(str(tmp_path / "trackers" / "tensorboard"))
        found.Reload()
        return [(event.step, event.value) for event in found.Scalars(tag)]

    run("tensorboard", range(1, 6))
    assert curve("train/loss") == [(1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0), (5, 0.0)]
    assert curve("eval/loss") == [(2, 4.5)]
    run("tensorboard", range(4, 7), resumed_at=3, shift=0.5)
    assert curve("train/loss") == [(1, 4.0), (2, 3.0), (3, 2.0), (4, 1.5), (5, 0.5), (6, -0.5)], "the later ones count"
    assert curve("system/gpu_power_w")[-1] == (6, 606.0)
    run("tensorboard", range(1, 3))
    assert curve("train/loss") == [(1, 4.0), (2, 3.0)], "a run that begins anew"


@needs("mlflow")
def test_mlflow(run: Run, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    run("mlflow", range(1, 6))
    run("mlflow", range(4, 8), resumed_at=3)
    client = MlflowClient(f"sqlite:///{tmp_path}/own.db")
    experiment = client.get_experiment_by_name("sftune")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("my-run", "FINISHED")
    assert found.data.params == {"train.seed": "0", "model.path": "builtin:tiny-hybrid"}
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert sorted((metric.step, metric.value) for metric in history) == [(step, 5.0 - step) for step in range(1, 8)]
    assert len(client.get_metric_history(found.info.run_id, "eval/loss")) == 1
    assert found.data.metrics["system/gpu_power_w"] == 607.0
    assert not (tmp_path / "mlruns").exists()


@needs("wandb")
def test_wandb_offline(run: Run, tmp_path: Path) -> None:
    run("wandb", range(1, 6))
    run("wandb", range(4, 8), resumed_at=3)
    run_id = json.loads((tmp_path / "trackers" / "wandb.json").read_text())["run_id"]
    logs = sorted((tmp_path / "trackers" / "wandb").glob(f"offline-run-*/run-{run_id}.wandb"))
    assert len(logs) == 2, "of one run"
    first, second = (log.read_bytes() for log in logs)
    assert b"train/loss" in first
    assert b"train/loss" in second
    assert b"eval/loss" in first
    assert b"eval/loss" not in second, "step 2 was there before"


@needs("trackio")
def test_trackio(run: Run, tmp_path: Path) -> None:
    run("trackio", range(1, 6))
    run("trackio", range(4, 8), resumed_at=3)
    (database,) = (tmp_path / "trackio").glob("sftune*.db")
    rows = sqlite3.connect(database).execute("select run_name, step, metrics from metrics order by step").fetchall()
    assert len({name for name, _, _ in rows}) == 1
    losses = [(step, json.loads(metrics)["train/loss"]) for _, step, metrics in rows if b"train/loss" in metrics]
    assert losses == [(step, 5.0 - step) for step in range(1, 8)]
