"""`sftune bench` of the built-in recipe: real runs, and nothing of them left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.sftune import command, sftune, tiny


def ours_in(temporary: Path) -> list[str]:
    """torch has a folder of its own there, which it keeps for the next process."""
    return [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor")]


@pytest.mark.long
def test_two_rungs_one_that_cannot_run_and_nothing_left(tmp_path: Path) -> None:
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    work.mkdir()
    temporary.mkdir()
    options = tiny(work, **{"train.max_steps": "2"})  # fewer than a bench takes: they come again
    ended = sftune(
        "bench", "--rungs", "stock,published,everything", "--steps", 2, "--warm-up", 1, "--json", *options,
        cwd=work, TMPDIR=str(temporary),
    )  # fmt: skip
    assert ended.code == 4, ended.err
    document = json.loads(ended.out)
    stock, published, everything = document["rungs"]
    assert document["device"] == "cpu"
    assert "needs a GPU" in published["error"]
    for rung in (stock, everything):
        assert rung["tokens_per_second"] > 0
        assert rung["tokens_per_second_min"] <= rung["tokens_per_second"] <= rung["tokens_per_second_max"]
        assert (rung["launches"], rung["mfu"], rung["timed_steps"]) == (None, None, 2)
        assert len(rung["warm_up_step_seconds"]) == 1
        assert rung["seconds_to_first_step"] > 0
        assert rung["hours_for_dataset"] > 0
        assert rung["kinds"].keys() >= {"GEMM", "attention", "delta rule", "conv", "norm", "loss", "optimizer"}
        assert sum(rung["kinds"].values()) > 0
    assert stock["ratio"] == 1
    assert everything["ratio"] == pytest.approx(everything["tokens_per_second"] / stock["tokens_per_second"])
    assert 0.5 < stock["real_share"] < everything["real_share"] <= 1
    assert stock["kernels"]["loss"] == "torch"
    assert list(work.iterdir()) == []
    assert ours_in(temporary) == []


@pytest.mark.long
def test_ctrl_c_leaves_nothing_and_two_ranks_run(tmp_path: Path) -> None:
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    work.mkdir()
    temporary.mkdir()
    options = [*tiny(work, **{"launch.gpus": "2"}), "--save", str(tmp_path / "saved.json")]
    process = subprocess.Popen(
        command("bench", "--rungs", "everything,packing", "--steps", 1, "--warm-up", 1, *options),
        cwd=work,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("2 of 2"):
            break
    for line in process.stderr:
        if line.startswith("exactness gate"):
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "+ everything" in out
    saved = json.loads((tmp_path / "saved.json").read_text())
    assert (saved["ranks"], [rung["name"] for rung in saved["rungs"]]) == (2, ["+ everything"])
    assert list(work.iterdir()) == []
    assert ours_in(temporary) == []
