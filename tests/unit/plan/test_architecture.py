from __future__ import annotations

from typing import Any

import pytest

from sft_cli.errors import ModelError
from sft_cli.plan.architecture import DeltaNet, read_architecture
from sft_cli.plan.shapes import read_shape

LLAMA = read_shape("llama-3.1-8b")
HYBRID = read_shape("tiny-hybrid")


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


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({**LLAMA, "model_type": "mamba"}, "'mamba' is not supported yet"),
        ({key: value for key, value in LLAMA.items() if key != "model_type"}, "None is not supported yet"),
        ({"model_type": "qwen3_5", "text_config": HYBRID}, "vision-language"),
        ({**LLAMA, "quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({**LLAMA, "hidden_size": None}, "hidden_size"),
        ({**LLAMA, "hidden_size": "4096"}, "'4096'"),
        ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers"),
        ({**LLAMA, "tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({**HYBRID, "layer_types": ["full_attention"]}, "1 entries for 4 layers"),
        ({**HYBRID, "layer_types": ["mamba"] * 4}, "mamba"),
        ({**LLAMA, "model_type": "qwen3", "use_sliding_window": True}, "sliding-window"),
    ],
)
def test_what_is_not_supported_is_refused_at_its_place(config: dict[str, Any], what: str) -> None:
    with pytest.raises(ModelError, match=what) as caught:
        read_architecture(config, "recipe.yaml:3: model.path")
    assert caught.value.where == "recipe.yaml:3: model.path"
    assert caught.value.fix
    assert caught.value.exit_code == 2
