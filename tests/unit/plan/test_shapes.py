from __future__ import annotations

import json
from pathlib import Path

import pytest

from sft_cli.plan.shapes import SHAPE_OF_HUB_ID, expand_interval, names, read_shape

PUBLISHED = Path(__file__).parents[4] / "shared" / "model_configs"
FILE_OF = {
    "qwen3.8-27b": "qwen3_8_27b",
    "qwen3.5-0.8b": "qwen3_5_0_8b",
    "qwen3.5-2b": "qwen3_5_2b",
    "qwen3.5-4b": "qwen3_5_4b",
    "qwen3.5-9b": "qwen3_5_9b",
    "qwen3.5-27b": "qwen3_5_27b",
}


@pytest.mark.parametrize("name", FILE_OF)
def test_a_shape_is_the_published_config(name: str) -> None:
    path = PUBLISHED / f"{FILE_OF[name]}.json"
    if not path.is_file():
        pytest.skip("the published configs are not at hand")
    assert read_shape(name) == json.loads(path.read_text(encoding="utf-8"))


def test_every_hub_id_names_a_shape_that_ships() -> None:
    assert set(SHAPE_OF_HUB_ID.values()) <= set(names())


def test_the_interval_puts_attention_last() -> None:
    assert expand_interval(3, 4) == ["linear_attention", "linear_attention", "full_attention", "linear_attention"]


def test_the_tiny_model_has_both_layer_kinds_and_knows_its_tokenizer() -> None:
    config = read_shape("tiny-hybrid")
    assert config["layer_types"] == ["linear_attention"] * 3 + ["full_attention"]
    assert (config["vocab_size"], config["eos_token_id"], config["pad_token_id"]) == (1024, 2, 0)


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="qwen9"):
        read_shape("qwen9")
