"""Every recipe that the project ships is valid and can be planned, without a GPU and without a network."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sft_cli.plan.document import plan_json
from sft_cli.plan.fit import find_fit
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.model_facts import find_model, find_tokenizer
from sft_cli.plan.resolve import resolve
from sft_cli.plan.speed import estimate_speed
from sft_cli.recipe.load import load_recipe

CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))
EIGHT_H200 = Hardware(8, "NVIDIA H200", 140.4, packages={"fla-core": "0.6.0"})


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))


def test_there_are_the_two_that_the_readme_names() -> None:
    assert {"tiny.yaml", "qwen27b.yaml"} <= {path.name for path in CONFIGS}


@pytest.mark.parametrize("hardware", [Hardware(0, None, None), EIGHT_H200], ids=["cpu", "h200"])
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_is_valid_and_can_be_planned(path: Path, hardware: Hardware) -> None:
    loaded = load_recipe(path)
    model = find_model(loaded.recipe.model, loaded.places)
    tokenizer = find_tokenizer(loaded.recipe.model, loaded.places)
    plan = resolve(loaded.recipe, hardware, model, tokenizer, None, loaded.places)
    document = plan_json(plan, find_fit(plan), estimate_speed(plan))
    assert document["memory_gib"]["total"] > 0
    assert document["fits"] is (None if hardware.gpu_memory_gib is None else True)


def test_the_headline_job_is_planned_for_eight_gpus() -> None:
    loaded = load_recipe(next(path for path in CONFIGS if path.name == "qwen27b.yaml"))
    plan = resolve(loaded.recipe, EIGHT_H200, find_model(loaded.recipe.model), None, None, loaded.places)
    assert plan.world.ranks == 8
    assert plan.model.parameters == 26_895_998_464
