"""`sftune train` with the optimizers that decide what fits."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file
from support.sftune import read_metrics, sftune, tiny, training_steps

BFLOAT16 = {"model.master_dtype": "bfloat16"}
IN_BACKWARD = {"optimizer.in_backward": "true", "train.max_grad_norm": "null"}


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer.name": "adamw_8bit"},
        {
            **BFLOAT16,
            **IN_BACKWARD,
            "optimizer.name": "adamw_8bit",
            "optimizer.stochastic_rounding": "true",
            "launch.gpus": "2",
        },
        {**IN_BACKWARD, "train.tokens_per_step": "512", "batching.mode": "padding", "sharding.backend": "none"},
    ],
    ids=["8-bit moments", "all of them on two ranks", "float32 in backward, padded and unsharded"],
)
def test_it_learns_saves_and_exports(tmp_path: Path, changes: dict[str, str]) -> None:
    ended = sftune("train", *tiny(tmp_path, **{"train.max_steps": "4", **changes}), cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "WARNING" not in ended.out
    run = tmp_path / "run"
    steps = training_steps(run)
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert all(step["grad_norm"] > 0 for step in steps)
    assert read_metrics(run)[-1]["event"] == "done"
    assert (run / "checkpoints" / "step-00000004").is_dir()
    assert all(weight.isfinite().all() for weight in load_file(run / "export" / "model.safetensors").values())


@pytest.mark.long
def test_bfloat16_masters_alone_are_warned_of_and_hardly_move(tmp_path: Path) -> None:
    changes = {**BFLOAT16, "optimizer.learning_rate": "1e-5", "train.max_steps": "2"}
    ended = sftune("train", *tiny(tmp_path, **changes), cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "model.master_dtype bfloat16: WARNING: an update of the learning rate's size, 1e-05, is" in ended.out
    assert "95% of weights spread by 0.06 do not move" in ended.out


def test_accumulation_in_backward_ends_with_2(tmp_path: Path) -> None:
    ended = sftune("plan", *tiny(tmp_path, **IN_BACKWARD), cwd=tmp_path)
    assert ended.code == 2
    assert "optimizer.in_backward" in ended.err
    assert "tokens_per_step: 512" in ended.err
