from __future__ import annotations

from typing import Any

import pytest

from sft_cli.errors import ModelError
from sft_cli.plan.architecture import DeltaNet, Experts, is_known, read_architecture
from sft_cli.plan.shapes import read_shape

LLAMA = read_shape("llama-3.1-8b")
HYBRID = read_shape("tiny-hybrid")
GEMMA3 = {"model_type": "gemma3_text", "num_hidden_layers": 7}


def test_a_hybrid_shape() -> None:
    shape = read_architecture(read_shape("qwen3.8-27b"))
    assert shape.family == "qwen3_5"
    assert shape.linear_attention == (True, True, True, False) * 16
    assert shape.delta_net == DeltaNet(16, 48, 128, 128, 4)
    assert shape.delta_net.conv_dim == 10240
    assert (shape.query_dim, shape.key_value_dim) == (6144, 1024)
    assert shape.gated_attention
    assert shape.head_norms


def test_a_llama_shape_takes_its_head_dim_from_the_heads_where_it_has_none() -> None:
    shape = read_architecture({key: value for key, value in LLAMA.items() if key != "head_dim"})
    assert (shape.family, shape.layers, shape.head_dim, shape.delta_net) == ("llama", 32, 128, None)


def test_layer_types_are_expanded_from_the_interval() -> None:
    config = {key: value for key, value in HYBRID.items() if key != "layer_types"}
    assert read_architecture(config).linear_attention == (True, True, True, False)


def test_windows_of_each_kind() -> None:
    mistral = {**LLAMA, "model_type": "mistral", "num_hidden_layers": 3}
    assert read_architecture(mistral).windows == (4096,) * 3
    assert read_architecture({**mistral, "sliding_window": None}).windows == (None,) * 3
    qwen2 = {**mistral, "model_type": "qwen2", "sliding_window": 100, "max_window_layers": 1}
    assert read_architecture(qwen2).windows == (None,) * 3
    assert read_architecture({**qwen2, "use_sliding_window": True}).windows == (None, 100, 100)
    assert read_architecture({**qwen2, "use_sliding_window": True, "max_window_layers": 9}).windows == (None,) * 3
    assert read_architecture(GEMMA3).windows == (4096,) * 5 + (None, 4096)


def test_experts_in_some_layers() -> None:
    config = {**HYBRID, "model_type": "qwen3_next", "mlp_only_layers": [3], "decoder_sparse_step": 2}
    shape = read_architecture(config)
    assert shape.sparse == (False, True, False, False)
    assert shape.experts == Experts(count=512, per_token=10, intermediate_size=512, shared_intermediate_size=512)


def test_a_vision_language_config_is_read_as_its_text_model() -> None:
    for outer, inner in (("qwen3_5", "qwen3_5_text"), ("qwen3_5_moe", "qwen3_5_moe_text")):
        text = {**HYBRID, "model_type": inner, "tie_word_embeddings": True}
        config = {"model_type": outer, "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text}
        assert read_architecture(config) == read_architecture(text)
        assert read_architecture({**text, "model_type": outer}) == read_architecture(text)
    gemma3 = {"model_type": "gemma3", "text_config": {"num_hidden_layers": 2}, "tie_word_embeddings": False}
    assert not read_architecture(gemma3).tied_embeddings


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({**LLAMA, "model_type": "mamba"}, "'mamba' has no family of its own"),
        ({key: value for key, value in LLAMA.items() if key != "model_type"}, "model_type None"),
        ({"model_type": "llava", "text_config": LLAMA}, "made of several models"),
        ({**LLAMA, "quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({**LLAMA, "hidden_size": None}, "hidden_size"),
        ({**LLAMA, "hidden_size": "4096"}, "'4096'"),
        ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers"),
        ({**LLAMA, "tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({**HYBRID, "layer_types": ["full_attention"]}, "1 entries for 4 layers"),
        ({**HYBRID, "layer_types": ["mamba"] * 4}, "mamba"),
        ({**HYBRID, "hidden_act": "gelu"}, "hidden_act is gelu"),
        ({**GEMMA3, "final_logit_softcapping": 30.0}, "caps its logits"),
        ({**GEMMA3, "attn_logit_softcapping": 50.0}, "caps its attention scores"),
        ({**GEMMA3, "use_bidirectional_attention": True}, "both directions"),
        ({**LLAMA, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({**GEMMA3, "rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, "longrope"),
        ({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
    ],
)
def test_what_is_not_supported_is_refused_at_its_place(config: dict[str, Any], what: str) -> None:
    with pytest.raises(ModelError, match=what) as caught:
        read_architecture(config, "recipe.yaml:3: model.path")
    assert caught.value.where == "recipe.yaml:3: model.path"
    assert caught.value.fix
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("architectures", "LlamaForCausalLM"),
        ("architectures", 5),
        ("rope_parameters", "default"),
        ("rope_scaling", [1, 2]),
        ("text_config", "llama"),
        ("attention_dropout", "0.5"),
        ("attention_dropout", -1),
        ("dtype", "float64"),
        ("dtype", "float99"),
        ("torch_dtype", 5),
        ("model_type", ["llama"]),
    ],
)
def test_a_value_of_another_kind_is_named(key: str, value: Any) -> None:
    config = {**LLAMA, key: value}
    is_known(config)
    with pytest.raises(ModelError, match=rf"the model's config has {key}:? ") as caught:
        read_architecture(config, "recipe.yaml:1")
    assert caught.value.where == "recipe.yaml:1"


def test_a_vision_language_config_without_a_text_config_that_can_be_read() -> None:
    with pytest.raises(ModelError, match="text_config: 'x' where an object is needed"):
        read_architecture({**HYBRID, "model_type": "qwen3_5", "text_config": "x"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "num_attention_heads: 4, which is no multiple of num_key_value_heads: 3"),
        ({"head_dim": 31}, "heads of 31 are odd"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads: 3, which is no multiple of linear_num_key_heads: 2"),
        ({"num_experts": 6, "num_experts_per_tok": 9}, "num_experts_per_tok: 9, and num_experts: 6"),
        ({"mlp_only_layers": 3}, "mlp_only_layers: 3 where a list is needed"),
    ],
)
def test_sizes_that_contradict_each_other(changes: dict[str, Any], message: str) -> None:
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_value_heads": 4, "linear_num_key_heads": 2}
    with pytest.raises(ModelError, match=message):
        read_architecture({**HYBRID, **sizes, "model_type": "qwen3_next", **changes})
