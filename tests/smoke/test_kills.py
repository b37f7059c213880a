"""The short version of `make faults`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.kills import killed_and_resumed, restarted, tensors, undisturbed
from support.sftune import read_metrics

STEPS = 9
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(tmp_path_factory.mktemp("kills") / "whole", STEPS)


def losses(run: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in read_metrics(run) if "loss" in line]


@pytest.mark.long
def test_killed_twice_around_saves_nothing_is_lost(tmp_path: Path, whole: Path) -> None:
    run, _ = killed_and_resumed(tmp_path / "killed", STEPS, kills=2, seed=1)
    assert tensors(run, STEPS) == tensors(whole, STEPS)
    assert losses(run) == losses(whole)
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == ["step-00000008", "step-00000009"]


@pytest.mark.long
def test_a_lost_rank_is_no_reason_to_stop(tmp_path: Path, whole: Path) -> None:
    run, told = restarted(tmp_path / "restarted", STEPS)
    assert "rank 1 was killed by SIGKILL" in told
    assert "restarting from" in told
    assert tensors(run, STEPS) == tensors(whole, STEPS)
    assert losses(run) == losses(whole)
