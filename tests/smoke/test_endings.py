"""Runs that end before their last step, and runs that somebody else has started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.sftune import read_metrics, sftune, tiny, training_steps


def in_torchrun(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    (folder / "tmp").mkdir()
    return subprocess.run(
        [*torchrun, "-m", "sft_cli", "train", *tiny(folder, **{"train.max_steps": "2"}), *options],
        cwd=folder,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(folder / "tmp")},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.long
def test_inside_torchrun_it_joins(tmp_path: Path) -> None:
    """Every rank of torchrun runs `sftune train`; none of them starts another torchrun."""
    ended = in_torchrun(tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["world"]["ranks"] == 2
    assert len(training_steps(tmp_path / "run")) == 2
    assert {path.name for path in (tmp_path / "run" / "logs").iterdir()} == {"events.jsonl", "rank-0.log", "rank-1.log"}


@pytest.mark.long
def test_a_dry_run_inside_torchrun_leaves_nothing(tmp_path: Path) -> None:
    ended = in_torchrun(tmp_path, "--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert not list((tmp_path / "tmp").glob("sftune-*"))


@pytest.mark.long
def test_a_loss_that_is_no_number_ends_with_7(tmp_path: Path) -> None:
    ended = sftune("train", *tiny(tmp_path, **{"optimizer.learning_rate": "1e30"}), cwd=tmp_path)
    assert ended.code == 7
    assert ended.err.count("error:") == 1
    assert "at step" in ended.err
    assert "rows of the tokenised data, counted from 0: " in ended.err
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert all(line.get("event") != "done" for line in read_metrics(tmp_path / "run"))
