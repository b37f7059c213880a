"""`sftune train` on real conversations."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.sftune import CACHE_VARIABLE, SHARED, sftune, training_steps, write_recipe


@pytest.mark.long
@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="needs the shared data")
def test_real_conversations(tmp_path: Path) -> None:
    shapes: dict[str, Any] = json.loads((SHARED / "model_configs" / "qwen3_5_tiny_test.json").read_text())
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(shapes))
    recipe = write_recipe(
        tmp_path / "recipe.yaml",
        model={
            "path": str(model),
            "weights": "random",
            "dtype": "float32",
            "tokenizer": str(SHARED / "tokenizers" / "bpe_4096"),
        },
        data={"train": str(SHARED / "data" / "mtbench101_en.jsonl"), "cache_dir": os.environ[CACHE_VARIABLE]},
        batching={"tokens": 1024},
        optimizer={"learning_rate": 6e-3},
        train={"tokens_per_step": 2048, "max_steps": 6},
        output_dir="run",
    )
    ended = sftune("train", recipe, cwd=tmp_path)
    assert ended.code == 0, ended.err
    losses = [line["loss"] for line in training_steps(tmp_path / "run")]
    assert losses[-1] < losses[0] - 0.3
