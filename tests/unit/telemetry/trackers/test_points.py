"""What of metrics.jsonl reaches trackers, and under which names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sft_cli.telemetry.gpu import GpuReading
from sft_cli.telemetry.meter import Totals
from sft_cli.telemetry.metrics_file import values_of
from sft_cli.telemetry.records import DoneRecord, EvaluationRecord, StepRecord
from sft_cli.telemetry.trackers import trackers as trackers_module
from sft_cli.telemetry.trackers.points import point_of
from sft_cli.telemetry.trackers.tracker import End, Opening, Point
from sft_cli.telemetry.trackers.trackers import Trackers, config_of


def test_a_step_is_numbers_in_groups(make_step: Callable[..., StepRecord]) -> None:
    gpu = GpuReading(utilization=0.9, power_w=600.0, clock_limits=("power_cap",))
    point = point_of(values_of(make_step(7, gpu=gpu)))
    assert point is not None
    assert point.step == 7
    assert point.values["train/loss"] == 2.5
    assert point.values["system/gpu_power_w"] == 600.0
    assert point.values["system/peak_memory_gib"] == 0.75
    missing = ("train/step", "train/mfu", "train/batch_hash", "system/gpu_clock_limits", "system/gpu_temperature_c")
    assert not point.values.keys() & set(missing)


def test_a_loss_that_is_no_number_is_left_out(make_step: Callable[..., StepRecord]) -> None:
    point = point_of(values_of(make_step(1, float("nan"))))
    assert point is not None
    assert "train/loss" not in point.values


def test_an_evaluation() -> None:
    expected = Point(5, {"eval/loss": 1.25, "eval/supervised_tokens": 300.0})
    assert point_of(values_of(EvaluationRecord(5, 1.25, 300))) == expected


def test_the_last_line_is_no_step() -> None:
    assert point_of(values_of(DoneRecord(Totals(1, 1, 1, 1, 1.0, 1.0, 1.0), 0.5, 0.4))) is None


def test_the_recipe_goes_along_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123")
    config = config_of(
        {
            "data": {"train": ({"path": "s3://me:pass@host/x", "weight": 1.0},), "eval": ()},
            "optimizer": {"betas": (0.9, 0.95), "in_backward": False},
            "output_dir": "/runs/0123456789abcdef0123",
        }
    )
    assert config == {
        "data.train.0.path": "s3://<hidden>@host/x",
        "data.train.0.weight": 1.0,
        "data.eval": "()",
        "optimizer.betas": "(0.9, 0.95)",
        "optimizer.in_backward": False,
        "output_dir": "/runs/<hidden>",
    }


class Recorder:
    """Stands for a tracker's process."""

    def __init__(self, name: str, opening: Opening, log: Path) -> None:
        self.name, self.log = name, log
        self.points: list[Point] = []
        self.ended: End | None = None
        self.finished = 0.0
        self.to_say = [f"{name} began"]
        RECORDERS.append(self)

    def send(self, point: Point) -> None:
        self.points.append(point)

    def complaints(self) -> list[str]:
        said, self.to_say = self.to_say, []
        return said

    def end(self, end: End) -> None:
        assert all(not other.finished for other in RECORDERS), "all are told before one is waited for"
        self.ended = end

    def finish(self, seconds: float) -> None:
        self.finished = seconds
        self.to_say.append(f"{self.name} was late")


RECORDERS: list[Recorder] = []


@pytest.fixture
def open_trackers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Trackers]:
    monkeypatch.setattr(trackers_module, "TrackerProcess", Recorder)
    RECORDERS.clear()
    opening = Opening(tmp_path / "trackers", "run", {})
    return lambda names, say: Trackers(names, opening, tmp_path, say)


@pytest.mark.parametrize(
    ("ending", "end", "seconds"),
    [("done", "finished", 30), ("stopped", "stopped", 10), ("raises", "failed", 5)],
)
def test_every_tracker_gets_every_line_and_how_it_ended(
    open_trackers: Any, make_step: Callable[..., StepRecord], ending: str, end: End, seconds: float
) -> None:
    said: list[str] = []

    def run() -> None:
        with open_trackers(("mlflow", "tensorboard", "mlflow"), said.append) as trackers:
            trackers.write(make_step(1))
            assert said == ["mlflow began", "tensorboard began"]
            trackers.write(EvaluationRecord(1, 2.0, 3))
            if ending == "done":
                trackers.write(DoneRecord(Totals(1, 1, 1, 1, 1.0, 1.0, 1.0), 0.5, 0.4))
            if ending == "raises":
                raise ValueError("of training")

    if ending == "raises":
        with pytest.raises(ValueError, match="of training"):
            run()
    else:
        run()
    assert [recorder.name for recorder in RECORDERS] == ["mlflow", "tensorboard"]
    for recorder in RECORDERS:
        assert [point.step for point in recorder.points] == [1, 1]
        assert recorder.ended == end
        assert recorder.finished == pytest.approx(seconds, abs=1)
    assert said[2:] == ["mlflow was late", "tensorboard was late"]


def test_a_run_without_trackers_leaves_no_folder(
    open_trackers: Any, make_step: Callable[..., StepRecord], tmp_path: Path
) -> None:
    with open_trackers((), pytest.fail) as trackers:
        trackers.write(make_step(1))
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_can_not_be_started_is_told_and_no_more(
    open_trackers: Any, make_step: Callable[..., StepRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Recorder:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(trackers_module, "TrackerProcess", refuse)
    said: list[str] = []
    with open_trackers(("mlflow",), said.append) as trackers:
        trackers.write(make_step(1))
    (line,) = said
    assert "tracker mlflow can't be started: Resource temporarily unavailable" in line
