from __future__ import annotations

from typing import Any

import pytest

from sft_cli.errors import UsageError
from sft_cli.plan.config_facts import facts_from_config
from sft_cli.plan.layer_slice import first_layers, sliced_config
from sft_cli.plan.model_facts import find_model
from sft_cli.plan.shapes import read_shape
from sft_cli.recipe.schema import ModelSection


def test_eight_layers_of_the_27b_are_a_model_of_their_own() -> None:
    whole = find_model(ModelSection(path="builtin:qwen3.8-27b"))
    part = first_layers(whole, 8)
    assert part.architecture().linear_attention == whole.architecture().linear_attention[:8]
    assert part.config["layer_types"] == whole.config["layer_types"][:8]
    assert (part.weights, part.folder) == ("random", None)
    per_layer = (whole.parameters - part.parameters) / (64 - 8)
    outside = part.parameters - 8 * per_layer
    width, words = whole.config["hidden_size"], whole.config["vocab_size"]
    assert outside == pytest.approx(2 * words * width, rel=0.01)
    assert part.because.startswith("the first 8 of 64 layers, with random weights; ")


def test_a_vision_language_config_is_cut_in_its_text_part() -> None:
    shape = read_shape("qwen3.5-0.8b")
    config = {"model_type": "qwen3_5", "text_config": {**shape, "model_type": "qwen3_5_text"}, "vision_config": {}}
    whole = facts_from_config(config, None, "pretrained", "", "model.path")
    assert "text_config" in whole.config
    assert first_layers(whole, 4).architecture().layers == 4


def test_every_kind_of_layer_is_in_it() -> None:
    hybrid = find_model(ModelSection(path="builtin:qwen3.8-27b"))
    with pytest.raises(UsageError, match="not of every kind") as caught:
        first_layers(hybrid, 3)
    assert caught.value.fix == "Ask for 4 or more."
    with pytest.raises(UsageError, match="the model has 64 layers"):
        first_layers(hybrid, 65)
    llama = find_model(ModelSection(path="builtin:llama-3.1-8b"))
    assert first_layers(llama, 1).architecture().layers == 1


def test_what_a_config_lists_by_layer_is_cut_and_nothing_else() -> None:
    config: dict[str, Any] = {
        "num_hidden_layers": 4,
        "layer_types": ["a", "b", "c", "d"],
        "no_rope_layers": [1, 1, 1, 0],
        "mlp_only_layers": [0, 3],
        "architectures": ["X"],
        "rope_parameters": {"mrope_section": [1, 2, 3, 4]},
    }
    assert sliced_config(config, 2) == {
        "num_hidden_layers": 2,
        "layer_types": ["a", "b"],
        "no_rope_layers": [1, 1],
        "mlp_only_layers": [0],
        "architectures": ["X"],
        "rope_parameters": {"mrope_section": [1, 2, 3, 4]},
    }
    with pytest.raises(UsageError, match="can't be cut"):
        sliced_config({"n_layer": 12}, 2)
