"""The short version of `make faults`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.kills import killed_and_resumed, tensors, undisturbed
from support.sftune import read_metrics

STEPS = 9


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_twice_around_saves_nothing_is_lost(tmp_path: Path) -> None:
    whole = undisturbed(tmp_path / "whole", STEPS)
    run, _ = killed_and_resumed(tmp_path / "killed", STEPS, kills=2, seed=1)
    assert tensors(run, STEPS) == tensors(whole, STEPS)
    losses = [[(line["step"], line["loss"]) for line in read_metrics(of) if "loss" in line] for of in (run, whole)]
    assert losses[0] == losses[1]
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == ["step-00000008", "step-00000009"]
