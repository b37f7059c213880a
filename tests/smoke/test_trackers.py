"""A run with TensorBoard beside metrics.jsonl: cut short by a signal, gone on with, and the same numbers in both."""

from __future__ import annotations

import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.sftune import command, read_metrics, sftune, tiny, training_steps

pytestmark = pytest.mark.skipif(find_spec("tensorboard") is None, reason="pip install 'sftune[tensorboard]'")

OPTIONS = {"telemetry.trackers": "[tensorboard]", "checkpoint.every_steps": "2"}


def curve(run: Path, tag: str) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "trackers" / "tensorboard"))
    found.Reload()
    events = found.Scalars(tag)
    assert len({event.step for event in events}) == len(events), "a step twice"
    return {event.step: event.value for event in events}


def test_stopped_and_resumed_a_tracker_has_what_metrics_jsonl_has(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = tiny(tmp_path, **OPTIONS, **{"train.max_steps": "300"})
    process = subprocess.Popen(command("train", *options), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not ((run / "metrics.jsonl").exists() and training_steps(run)) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    at_stop = {line["step"]: line["loss"] for line in training_steps(run)}
    assert curve(run, "train/loss") == pytest.approx(at_stop, rel=1e-6), "all of it was brought home"

    more = str(max(at_stop) + 3)
    ended = sftune("train", *tiny(tmp_path, **OPTIONS, **{"train.max_steps": more}), "--resume", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "WARNING" not in ended.out
    whole = {line["step"]: line["loss"] for line in training_steps(run)}
    assert len(whole) == int(more)
    assert curve(run, "train/loss") == pytest.approx(whole, rel=1e-6)
    assert read_metrics(run)[-1]["event"] == "done"

    ended = sftune("train", *tiny(tmp_path, **{"train.max_steps": "1"}), "--overwrite", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert not (run / "trackers").exists(), "of the run that was overwritten"
