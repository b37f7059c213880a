"""`sftune profile` on a GPU: both sides of the trace, and the numbers that only a GPU has."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from support.sftune import sftune, tiny


def test_both_sides(tmp_path: Path) -> None:
    changes = {
        "model.dtype": "bfloat16",
        "launch.gpus": "1",
        "batching.tokens": "4096",
        "train.tokens_per_step": "8192",
        "sharding.activation_checkpointing.mode": "full",
    }
    ended = sftune("profile", "--steps", 3, "--memory", *tiny(tmp_path, **changes), cwd=tmp_path, timeout_seconds=600)
    assert ended.code == 0, ended.err
    print(ended.out)
    folder = tmp_path / "run" / "profile"
    profile = json.loads((folder / "profile.json").read_text())
    with gzip.open(folder / "trace.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    kernels = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    assert profile["gpu"]["calls"] * 3 == pytest.approx(len(kernels))
    assert profile["gpu"]["seconds"] * 3 == pytest.approx(sum(event["dur"] for event in kernels) / 1e6)
    assert 0 < profile["gpu_busy"] <= 1
    # A model this small: the host can't keep up.
    assert profile["launch_bound"] is True
    assert any("launch-bound" in finding["what"] for finding in profile["findings"])
    assert 0 < profile["recompute_share"] < 0.5
    kinds = {row["name"] for row in profile["gpu"]["kinds"]}
    assert kinds >= {"GEMM", "attention", "delta rule", "conv", "norm", "elementwise", "copy", "loss", "optimizer"}
    others = next((row["seconds"] for row in profile["gpu"]["kinds"] if row["name"] == "other"), 0.0)
    assert others < 0.05 * profile["gpu"]["seconds"]
    assert 0 < profile["gemm"]["tflops"] < profile["gemm"]["ceiling_tflops"]
    assert (folder / "memory.pickle").stat().st_size > 0
    assert "Memory over the step" in (folder / "report.html").read_text()
