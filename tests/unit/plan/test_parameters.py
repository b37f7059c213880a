"""The arithmetic against the modules that transformers builds, on meta."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import CONFIGS
from transformers import AutoConfig, AutoModelForCausalLM

from sft_cli.plan.architecture import read_architecture
from sft_cli.plan.parameters import count_parameters
from sft_cli.plan.shapes import names, read_shape

SMALL = {"vocab_size": 320, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
VARIANTS = {
    "hybrid with grouped values": {
        **SMALL,
        **HEADS,
        "model_type": "qwen3_5_text",
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 3,
    },
    "tied hybrid": {**read_shape("tiny-hybrid"), "tie_word_embeddings": True, "attention_bias": True},
    "llama": {**SMALL, **HEADS, "model_type": "llama"},
    "llama with biases": {**SMALL, **HEADS, "model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "tied llama": {**SMALL, **HEADS, "model_type": "llama", "tie_word_embeddings": True},
    "qwen3": {**SMALL, **HEADS, "model_type": "qwen3"},
    "qwen3 with default head_dim": {
        **SMALL,
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attention_bias": True,
    },
    "qwen2": {**SMALL, "model_type": "qwen2", "num_attention_heads": 6, "num_key_value_heads": 2},
    "qwen2 with head_dim": {**SMALL, **HEADS, "model_type": "qwen2"},
    "mistral": {**SMALL, **HEADS, "model_type": "mistral"},
    "gemma3": {**SMALL, **HEADS, "model_type": "gemma3_text"},
    "untied gemma3 with biases": {
        **SMALL,
        **HEADS,
        "model_type": "gemma3_text",
        "attention_bias": True,
        "tie_word_embeddings": False,
    },
}
SPARSE = {
    "qwen3_next": CONFIGS["qwen3_next"],
    "qwen3_next with defaults": {**SMALL, **HEADS, "model_type": "qwen3_next"},
    "tied qwen3_next": {**CONFIGS["qwen3_next"], "tie_word_embeddings": True, "attention_bias": True},
    "qwen3_5_moe": CONFIGS["qwen3_5_moe"],
}
PUBLISHED = Path(__file__).parents[4] / "shared" / "model_configs"
SHIPPED = {name: read_shape(name) for name in names()}


def build(config: dict[str, Any]) -> torch.nn.Module:
    keys = {key: value for key, value in config.items() if key not in ("model_type", "dtype")}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **keys))


ALL = VARIANTS | SPARSE | SHIPPED


@pytest.mark.parametrize("config", ALL.values(), ids=ALL)
def test_each_part_is_what_transformers_builds(config: dict[str, Any]) -> None:
    assert_same_parts(config)


def test_the_published_qwen3_next_has_80_billion() -> None:
    path = PUBLISHED / "qwen3_next_80b_a3b.json"
    if not path.is_file():
        pytest.skip("the published configs are not at hand")
    config = json.loads(path.read_text(encoding="utf-8"))
    assert_same_parts(config)
    parameters = count_parameters(read_architecture(config))
    assert parameters.total == 79_674_391_296
    assert parameters.matmul == pytest.approx(3e9, rel=0.25)  # "A3B"


def assert_same_parts(config: dict[str, Any]) -> None:
    model = build(config)
    size_of = {name: parameter.numel() for name, parameter in model.named_parameters()}

    def total(*prefixes: str) -> int:
        return sum(size for name, size in size_of.items() if name.startswith(prefixes))

    parameters = count_parameters(read_architecture(config))
    assert parameters.total == sum(size_of.values())
    assert parameters.embedding == total("model.embed_tokens.")
    assert parameters.head == total("lm_head.")
    assert parameters.final_norm == total("model.norm.")
    for index, layer in enumerate(parameters.layers):
        prefix = f"model.layers.{index}."
        assert layer.mlp == total(f"{prefix}mlp.")
        norms = (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        )
        assert layer.norms == total(*(f"{prefix}{norm}." for norm in norms))
        mixer = "linear_attn." if layer.linear_attention else "self_attn."
        assert layer.mixer == total(f"{prefix}{mixer}")
        assert layer.total == total(prefix)


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_matmul_parameters_are_the_weights_of_linear_modules(config: dict[str, Any]) -> None:
    linear = [module for module in build(config).modules() if isinstance(module, torch.nn.Linear)]
    assert count_parameters(read_architecture(config)).matmul == sum(module.weight.numel() for module in linear)


@pytest.mark.parametrize("config", SPARSE.values(), ids=SPARSE)
def test_of_experts_only_those_of_a_token_multiply(config: dict[str, Any]) -> None:
    """Router and experts hold bare parameters, all experts stacked in one."""
    shape, model = read_architecture(config), build(config)
    assert shape.experts is not None
    linear = {name: m.weight.numel() for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    routers = sum(p.numel() for name, p in model.named_parameters() if name.endswith("mlp.gate.weight"))
    stacked = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    taken = stacked * shape.experts.per_token // shape.experts.count
    assert count_parameters(shape).matmul == sum(linear.values()) + routers + taken


def test_the_tiny_model_is_under_three_million() -> None:
    assert count_parameters(read_architecture(read_shape("tiny-hybrid"))).total < 3_000_000
