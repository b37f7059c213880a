"""`sftune bench` on a GPU: the numbers that only a GPU has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.sftune import sftune, tiny


def test_the_ladder_of_a_slice(tmp_path: Path) -> None:
    changes = {
        "model.path": "builtin:qwen3.5-0.8b",
        "model.tokenizer": "builtin:tiny-hybrid",
        "model.dtype": "bfloat16",
        "launch.gpus": "1",
        "batching.tokens": "4096",
        "train.tokens_per_step": "8192",
    }
    rungs = "stock,kernels,packing,everything,published"
    ended = sftune(
        "bench", "--rungs", rungs, "--layers", 4, "--steps", 3, "--json", *tiny(tmp_path, **changes),
        cwd=tmp_path, timeout_seconds=600,
    )  # fmt: skip
    print(ended.err, ended.out)
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert "NVIDIA" in document["device"]
    rates = {rung["name"]: rung["tokens_per_second"] for rung in document["rungs"]}
    assert rates["+ packing"] > 2 * rates["stock"]
    for rung in document["rungs"]:
        assert 0 < rung["mfu"] < 1
        assert rung["launches"] > 100
        assert rung["kinds"]["GEMM"] > 0
        assert rung["kinds"]["idle"] >= 0
        assert rung["warm_up_seconds"] > 0
        # The profiler saw a step like those that were timed.
        assert sum(rung["kinds"].values()) == pytest.approx(rung["step_seconds"], rel=0.5)
    stock, everything = document["rungs"][0], document["rungs"][3]
    assert stock["launches"] > 3 * everything["launches"]
