"""The plan's memory against the peak of a real run, in every mode of activation checkpointing, compiled and in float8
too; prints docs/memory.md's table (`make test-gpu`)."""

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
COMPILED = {"kernels.compile": "true"}
KERNELS = {
    "as they are": {},
    "compiled": COMPILED,
    "tensorwise": {**COMPILED, "kernels.float8": "tensorwise"},
    "rowwise": {**COMPILED, "kernels.float8": "rowwise"},
}
CASES = [
    *(("as they are", mode) for mode in MODES),
    *((kernels, mode) for kernels in KERNELS if kernels != "as they are" for mode in ("none", "selective")),
    *(("tensorwise", mode) for mode in ("full, 4 layers, others selective", "selective, offload")),
]


@pytest.fixture(params=["0.8B", "8 layers of 27B"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """What it is called, and its config."""
    shape = read_shape("qwen3.5-0.8b" if request.param == "0.8B" else "qwen3.8-27b")
    if request.param != "0.8B":
        shape |= {"num_hidden_layers": 8, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2}
    path = tmp_path / "shape.json"
    path.write_text(json.dumps(shape), encoding="utf-8")
    return request.param, str(path)


@pytest.mark.parametrize(("kernels", "mode"), CASES)
def test_the_plan_is_within_a_tenth_of_what_is_measured(
    model: tuple[str, str], kernels: str, mode: str, tmp_path: Path
) -> None:
    if "kernels.float8" in KERNELS[kernels]:
        pytest.importorskip("torchao")
    name, path = model
    settings = {
        **KERNELS[kernels],
        "model": f"{{path: {path}, weights: random, tokenizer: 'builtin:tiny-hybrid'}}",
        "data.train": "builtin:chat",
        "data.cache_dir": str(tmp_path / "cache"),
        "sharding.activation_checkpointing": MODES[mode],
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
    cells = (
        name,
        kernels,
        mode,
        f"{measured:.1f}",
        f"{planned:.1f}",
        f"{planned / measured - 1:+.1%}",
        plan["memory_moment"],
    )
    print(f"\n| {' | '.join(cells)} |")
    assert planned == pytest.approx(measured, rel=0.1)
