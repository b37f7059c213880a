from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sft_cli.telemetry.gpu import GpuReading
from sft_cli.telemetry.meter import Totals
from sft_cli.telemetry.metrics_file import MetricsFile, cut_back, is_done, logged_steps, to_line
from sft_cli.telemetry.records import DoneRecord, EvaluationRecord, StepRecord

MakeStep = Callable[..., StepRecord]
TOTALS = Totals(10, 9000, 4000, 10240, 12.3456789, 10.0, 900.0)


def test_step_has_the_interfaces_keys(make_step: MakeStep) -> None:
    assert json.loads(to_line(make_step(7))) == {
        "step": 7,
        "epoch": 0.25,
        "loss": 2.5,
        "grad_norm": 1.5,
        "learning_rate": 0.003,
        "tokens": 900,
        "supervised_tokens": 400,
        "slots": 1024,
        "tokens_per_second": 1800.0,
        "mfu": None,
        "step_seconds": 0.5,
        "data_wait_seconds": 0.01,
        "forward_seconds": None,
        "backward_seconds": None,
        "optimizer_seconds": None,
        "peak_memory_gib": 0.75,
        "batch_hash": "",
    }


def test_a_gpu_adds_what_its_driver_says(make_step: MakeStep) -> None:
    values = json.loads(to_line(make_step(7, gpu=GpuReading(0.97, 61, 642.5))))
    assert {key: value for key, value in values.items() if key.startswith("gpu_")} == {
        "gpu_utilization": 0.97,
        "gpu_temperature_c": 61,
        "gpu_power_w": 642.5,
    }


def test_evaluation_has_no_loss_of_a_step() -> None:
    assert json.loads(to_line(EvaluationRecord(5, 1.25, 300))) == {
        "step": 5,
        "eval_loss": 1.25,
        "eval_supervised_tokens": 300,
    }


def test_done_is_no_step() -> None:
    values = json.loads(to_line(DoneRecord(TOTALS, train_loss=0.5, eval_loss=None)))
    assert values == {
        "event": "done",
        "steps": 10,
        "tokens": 9000,
        "supervised_tokens": 4000,
        "slots": 10240,
        "seconds": 12.346,
        "training_seconds": 10.0,
        "tokens_per_second": 900.0,
        "train_loss": 0.5,
        "eval_loss": None,
    }


@pytest.mark.parametrize("loss", [0.1 + 0.2, 1e-12, 2.302585092994046])
def test_loss_comes_back_bit_for_bit(make_step: MakeStep, loss: float) -> None:
    values = json.loads(to_line(make_step(1, loss, grad_norm=loss, learning_rate=loss)))
    assert (values["loss"], values["grad_norm"], values["learning_rate"]) == (loss, loss, loss)


def test_what_json_can_not_say_is_null(make_step: MakeStep) -> None:
    line = to_line(make_step(1, float("nan"), grad_norm=float("inf")))
    values = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (values["loss"], values["grad_norm"]) == (None, None)


def test_mfu_is_kept_to_a_millionth(make_step: MakeStep) -> None:
    record = make_step(1)
    record = replace(record, window=replace(record.window, mfu=0.41623456))
    assert json.loads(to_line(record))["mfu"] == 0.416235


def test_lines_are_there_at_once_and_added_to_earlier_ones(tmp_path: Path, make_step: MakeStep) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    with MetricsFile(path) as metrics:
        metrics.write(make_step(2))
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
        metrics.write(EvaluationRecord(2, 1.0, 3))
        assert path.read_text().endswith("\n")
    assert len(path.read_text().splitlines()) == 3


def test_cut_back_keeps_what_belongs_to_the_steps_before(tmp_path: Path, make_step: MakeStep) -> None:
    path = tmp_path / "metrics.jsonl"
    before = EvaluationRecord(0, 3.0, 10)
    kept = [to_line(before), to_line(make_step(1)), to_line(make_step(2)), to_line(EvaluationRecord(2, 2.5, 10))]
    path.write_text(
        "".join([*kept, to_line(make_step(3)), to_line(DoneRecord(TOTALS, 0.5, None)), to_line(make_step(4))[:20]])
    )
    assert is_done(path)
    assert sorted(logged_steps(path)) == [1, 2, 3]
    cut_back(path, 2, owes_evaluation=False)
    assert path.read_text() == "".join(kept)
    assert not is_done(path)
    cut_back(path, 2, owes_evaluation=True)
    assert path.read_text() == "".join(kept[:-1])
    assert list(tmp_path.iterdir()) == [path]


def test_cut_back_of_nothing(tmp_path: Path) -> None:
    cut_back(tmp_path / "metrics.jsonl", 2, owes_evaluation=False)
    assert list(tmp_path.iterdir()) == []
    assert logged_steps(tmp_path / "metrics.jsonl") == {}
    assert not is_done(tmp_path / "metrics.jsonl")
