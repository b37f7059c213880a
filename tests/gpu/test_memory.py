"""The plan's memory against the peak of a real run, in every mode of activation checkpointing; prints docs/memory.md's
table (`make test-gpu`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.sftune import sftune, training_steps

from sft_cli.plan.shapes import read_shape

MODES = {
    "none": "{mode: none}",
    "full": "{mode: full}",
    "full, 4 layers": "{mode: full, layers: 4}",
    "full, 4 layers, others selective": "{mode: full, layers: 4, others: selective}",
    "selective": "{mode: selective}",
    "selective, offload": "{mode: selective, offload: true}",
}


@pytest.fixture(params=["0.8B", "8 layers of 27B"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """What it is called, and its config."""
    shape = read_shape("qwen3.5-0.8b" if request.param == "0.8B" else "qwen3.8-27b")
    if request.param != "0.8B":
        shape |= {"num_hidden_layers": 8, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2}
    path = tmp_path / "shape.json"
    path.write_text(json.dumps(shape), encoding="utf-8")
    return request.param, str(path)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_plan_is_within_a_tenth_of_what_is_measured(model: tuple[str, str], mode: str, tmp_path: Path) -> None:
    name, path = model
    settings = {
        "model": f"{{path: {path}, weights: random, tokenizer: 'builtin:tiny-hybrid'}}",
        "data.train": "builtin:chat",
        "data.cache_dir": str(tmp_path / "cache"),
        "sharding.activation_checkpointing": mode,
        "train": "{max_steps: 2, tokens_per_step: 16384}",
        "checkpoint.enabled": "false",
        "launch.gpus": "1",
        "output_dir": str(tmp_path / "run"),
    }
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {path: x}\ndata: {train: x}\n", encoding="utf-8")
    options = [option for key, value in settings.items() for option in ("--set", f"{key}={value}")]
    ended = sftune("train", recipe, *options, cwd=tmp_path, timeout_seconds=600)
    assert ended.code == 0, ended.err
    plan = json.loads((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))
    planned, measured = plan["memory_gib"]["total"], training_steps(tmp_path / "run")[-1]["peak_memory_gib"]
    cells = (name, mode, f"{measured:.1f}", f"{planned:.1f}", f"{planned / measured - 1:+.1%}", plan["memory_moment"])
    print(f"\n| {' | '.join(cells)} |")
    assert planned == pytest.approx(measured, rel=0.1)
