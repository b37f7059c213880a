from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.run_folders import Line, step

from sft_cli.telemetry.report.metrics import Metrics, read_metrics


def metrics_of(folder: Path, *lines: Line) -> Metrics:
    path = folder / "metrics.jsonl"
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return read_metrics(path)


def test_every_number_of_the_log_is_a_series(tmp_path: Path) -> None:
    metrics = metrics_of(tmp_path, step(1), step(2, gpu_of_tomorrow_w=7), {"step": 2, "eval_loss": 1.5})
    assert list(metrics.series["loss"].steps) == [1, 2]
    assert list(metrics.series["gpu_of_tomorrow_w"].values) == [7.0]
    assert list(metrics.series["real_share"].values) == [0.9, 0.9]
    assert "mfu" not in metrics.series, "it was null in every line"
    assert not {"step", "batch_hash"} & metrics.series.keys()
    assert list(metrics.evaluations.values) == [1.5]
    assert metrics.last_step == 2
    assert metrics.done is None


def test_a_line_that_is_being_written_is_none_and_a_broken_one_is_counted(tmp_path: Path) -> None:
    metrics = metrics_of(tmp_path, step(1), "nonsense\n", "[1]\n", '{"step": "x"}\n', "\n", '{"step": 2, "lo')
    assert list(metrics.series["loss"].steps) == [1]
    assert metrics.unreadable == 3


def test_there_may_be_no_file(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == Metrics()


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1e999", "1" + "0" * 400, "true", "null", '{"a": 1}'])
def test_what_is_no_number_leaves_a_gap(tmp_path: Path, value: str) -> None:
    metrics = metrics_of(tmp_path, step(1, odd=1), f'{{"step": 2, "loss": 1.0, "odd": {value}}}\n')
    assert list(metrics.series["odd"].steps) == [1]
    assert list(metrics.series["loss"].steps) == [1, 2]


def test_a_loss_that_is_null_was_not_finite(tmp_path: Path) -> None:
    assert metrics_of(tmp_path, step(1), step(2, loss=None), step(3, grad_norm=None)).not_finite == [2, 3]


def test_steps_taken_again_count_once(tmp_path: Path) -> None:
    lines = [step(1), step(2, loss=None), {"step": 2, "eval_loss": 9.0}, step(3), step(2, loss=0.5), step(3, loss=0.25)]
    metrics = metrics_of(tmp_path, *lines)
    assert list(metrics.series["loss"].values) == [3.0, 0.5, 0.25]
    assert not metrics.evaluations
    assert metrics.not_finite == []


def test_words_are_counted(tmp_path: Path) -> None:
    lines = [step(1, gpu_limits=[]), step(2, gpu_limits=["hot"]), step(3, gpu_limits=["hot", "power"])]
    words = metrics_of(tmp_path, *lines).words["gpu_limits"]
    assert {word: (seen.lines, seen.first_step, seen.last_step) for word, seen in words.items()} == {
        "hot": (2, 2, 3),
        "power": (1, 3, 3),
    }


def test_the_last_line_says_done(tmp_path: Path) -> None:
    done = {"event": "done", "steps": 1}
    assert metrics_of(tmp_path, step(1), done).done == done
