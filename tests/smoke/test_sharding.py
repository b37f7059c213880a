"""Sharding through the real command line: what the recipe asks for reaches the ranks, a checkpoint and an export."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import safe_open
from support.sftune import sftune, tiny, training_steps


@pytest.mark.long
def test_replicas_buffers_and_host_memory(tmp_path: Path) -> None:
    options = {
        "sharding.replicas": "2", "sharding.buffers": "preallocated", "sharding.prefetch": "2",
        "sharding.defer_reduce": "true", "sharding.cpu_offload": "true", "launch.gpus": "2",
        "train.max_steps": "2", "train.tokens_per_step": "2048", "model.dtype": "float32",
    }  # fmt: skip
    ended = sftune("train", *tiny(tmp_path / "options", **options), cwd=tmp_path)
    assert ended.code == 0, ended.err
    kept = ("launch.gpus", "train.max_steps", "train.tokens_per_step", "model.dtype")
    plain = sftune("train", *tiny(tmp_path / "plain", **{key: options[key] for key in kept}), cwd=tmp_path)
    assert plain.code == 0, plain.err
    found, expected = (training_steps(tmp_path / name / "run") for name in ("options", "plain"))
    for one, other in zip(found, expected, strict=True):
        assert abs(one["loss"] - other["loss"]) < 1e-5
        assert abs(one["grad_norm"] - other["grad_norm"]) < 1e-4
    with safe_open(tmp_path / "options" / "run" / "export" / "model.safetensors", framework="pt") as export:
        assert any(name.endswith("A_log") for name in export.keys())  # noqa: SIM118 - it is no mapping


def test_replicas_that_do_not_fit_the_ranks_are_refused_at_the_line(tmp_path: Path) -> None:
    ended = sftune("train", *tiny(tmp_path, **{"launch.gpus": "2", "sharding.replicas": "3"}), cwd=tmp_path)
    assert ended.code == 2
    assert "sharding.replicas=3: 3 are asked for, and 2 ranks can't be spread over them evenly" in ended.err
    assert not (tmp_path / "run").exists()
