"""The recipes in `configs/` fit the GPUs that their first comments name, planned offline through the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import ROOT, Ended

CONFIGS = ROOT / "configs"
FIT: dict[str, tuple[tuple[str, int], ...]] = {
    "qwen0.8b": (("rtx4090", 1),),
    "qwen9b": (("h100", 4), ("h100", 8), ("a100-80g", 4), ("h200", 4)),
    "qwen27b": (("h200", 8),),
    "llama8b": (("h100", 4), ("h100", 8), ("a100-80g", 4), ("h200", 4)),
}
"""For each recipe the GPUs that its comment names, and how many."""
SHAPES = {
    "qwen0.8b": "qwen3.5-0.8b",
    "qwen9b": "qwen3.5-9b",
    "qwen27b": "qwen3.8-27b",
    "llama8b": "llama-3.1-8b",
}
"""The shape that ships for each recipe's model."""


@pytest.fixture
def planned(
    sftune: Callable[..., Ended], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """`sftune plan` of a recipe as JSON, on a machine that has downloaded nothing."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    # `plan` sets it for good; here it is taken back after the test.
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "empty"))

    def plan(recipe: str, gpu: str, *options: str) -> dict[str, Any]:
        ended = sftune("plan", str(CONFIGS / f"{recipe}.yaml"), "--gpu", gpu, "--json", *options)
        assert ended.code == 0, ended.err
        found: dict[str, Any] = json.loads(ended.out)
        return found

    return plan


def test_every_recipe_that_stands_alone_is_listed_here() -> None:
    alone = {path.stem for path in CONFIGS.glob("*.yaml") if "\nextends:" not in path.read_text(encoding="utf-8")}
    assert alone == {"tiny", *FIT} == {"tiny", *SHAPES}


@pytest.mark.parametrize(
    ("recipe", "gpu", "gpus"), [(recipe, gpu, gpus) for recipe, named in FIT.items() for gpu, gpus in named]
)
def test_it_fits_the_gpus_that_its_comment_names(
    planned: Callable[..., dict[str, Any]], recipe: str, gpu: str, gpus: int
) -> None:
    document = planned(recipe, gpu, "--set", f"launch.gpus={gpus}")
    assert document["fits"] is True
    assert document["memory_gib"]["total"] < document["gpu_memory_gib"]
    assert document["steps"] is None
    assert document["choices"][-1]["key"] == "steps"
    assert "tokenizer is not on this machine" in document["choices"][-1]["because"]
    # No rounding up: tokens_per_step is what the recipe says on every number of GPUs that it names.
    assert "train.tokens_per_step" not in {choice["key"] for choice in document["choices"]}


@pytest.mark.parametrize("recipe", FIT)
def test_random_weights_of_its_shape_need_no_download(planned: Callable[..., dict[str, Any]], recipe: str) -> None:
    gpu = FIT[recipe][0][0]
    random = planned(recipe, gpu, "--set", f"model.path=builtin:{SHAPES[recipe]}", "--set", "model.weights=random")
    pretrained = planned(recipe, gpu)
    assert random["memory_gib"] == pretrained["memory_gib"]
    assert random["fits"] is True


def test_the_headline_model_fits_one_gpu(planned: Callable[..., dict[str, Any]]) -> None:
    document = planned("qwen27b-one-gpu", "h200")
    assert document["fits"] is True
    assert 128 < document["memory_gib"]["total"] < 134
    assert document["micro_batches_per_step"] == 1
    assert planned("qwen27b", "h200", "--set", "launch.gpus=1")["fits"] is False
