"""Small models of every family, whole or spread over gloo ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from sft_cli.kernels.install import install
from sft_cli.kernels.loss import LOSS
from sft_cli.kernels.regions import Regions
from sft_cli.model.build import build
from sft_cli.model.language_model import LanguageModel
from sft_cli.model.weights import draw_weights, materialise
from sft_cli.parallel.apply import parallelise
from sft_cli.parallel.kept_calls import kept
from sft_cli.parallel.reduction import GradientReduction
from sft_cli.recipe.schema import KernelsSection, ShardingSection
from sft_cli.worker.assemble import kernel_layers

WORDS = 256

_SHARED: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    # Larger than usual: with 0.02 a tiny model's logits are so flat that a leak would drown in rounding.
    "initializer_range": 0.2,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_5": {
        **_SHARED,
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    },
    "llama": {
        **_SHARED,
        "model_type": "llama",
        "num_hidden_layers": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "qwen3": {
        **_SHARED,
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "head_dim": 32,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    # The window is shorter than the rows of the tests, and no divisor of anything.
    "qwen2": {
        **_SHARED,
        "model_type": "qwen2",
        "num_hidden_layers": 2,
        "use_sliding_window": True,
        "sliding_window": 19,
        "max_window_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "mistral": {
        **_SHARED,
        "model_type": "mistral",
        "num_hidden_layers": 2,
        "head_dim": 32,
        "sliding_window": 19,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "gemma3": {
        **_SHARED,
        "model_type": "gemma3_text",
        "num_hidden_layers": 3,
        "head_dim": 32,
        "sliding_window": 19,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 32,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
        },
    },
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
_HYBRID = {key: value for key, value in CONFIGS["qwen3_5"].items() if key != "rope_parameters"}
CONFIGS["qwen3_next"] = {
    **_HYBRID,
    **_EXPERTS,
    "model_type": "qwen3_next",
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "mlp_only_layers": [1],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}
CONFIGS["qwen3_5_moe"] = {
    **CONFIGS["qwen3_5"],
    **_EXPERTS,
    "model_type": "qwen3_5_moe_text",
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
}
del CONFIGS["qwen3_5_moe"]["intermediate_size"]


REFERENCES = KernelsSection(
    linear_attention="torch", conv="torch", attention="sdpa", norm="torch", gated_norm="torch", mlp="torch",
    loss="chunked",
)  # fmt: skip
"""What runs on any device."""


def vision_language_config(family: str) -> dict[str, Any]:
    """config.json of the vision-language class around a family's text model."""
    text = CONFIGS[family]
    return {
        "model_type": text["model_type"].removesuffix("_text"),
        "architectures": [{"gemma3": "Gemma3ForConditionalGeneration"}.get(family, "Qwen3_5ForConditionalGeneration")],
        "text_config": {**text, "dtype": "float32"},
        "tie_word_embeddings": text["tie_word_embeddings"],
    }


def make_model(family: str, **options: Any) -> LanguageModel:
    """See `make_sharded_model`, without the reduction."""
    return make_sharded_model(family, **options)[0]


def make_sharded_model(
    family: str,
    *,
    config: dict[str, Any] | None = None,
    mesh: DeviceMesh | None = None,
    sharded: bool = True,
    checkpointing: str = "none",
    checkpointed_layers: str | int = "all",
    others: str = "none",
    offload: bool = False,
    seed: int = 0,
    compute_dtype: torch.dtype = torch.float32,
    master_dtype: torch.dtype = torch.float32,
    kernels: KernelsSection = REFERENCES,
    regions: Regions | None = None,
    **sharding: Any,
) -> tuple[LanguageModel, GradientReduction]:
    """A model with random weights on the mesh's device; sharded with FSDP2 where there is a mesh.

    Args:
        config: default: the family's of `CONFIGS`.
        regions: what is compiled, or multiplied in float8.
        sharding: keys of the recipe's section.
    """
    config = CONFIGS[family] if config is None else config
    model = build(config, family=family, dtype=master_dtype, loss=LOSS[kernels.loss]())
    install(kernel_layers(model), kernels, expensive=kept, regions=regions)
    options = {
        "backend": "none" if mesh is None or not sharded else "fsdp2",
        "activation_checkpointing": {
            "mode": checkpointing, "layers": checkpointed_layers, "others": others, "offload": offload,
        },
        **sharding,
    }  # fmt: skip
    reduction = parallelise(
        model,
        ShardingSection.model_validate(options),
        blocks=model.blocks,
        embedding=model.embedding,
        head=model.head,
        tied=model.tied,
        float32=model.float32_parameters,
        mesh=mesh,  # type: ignore[arg-type]
        compute_dtype=compute_dtype,
    )
    device = torch.device("cpu" if mesh is None else mesh.device_type)
    materialise(model, config, device)
    draw_weights(model, config, seed=seed, device=device)
    return model, reduction


@torch.no_grad()
def copy_weights(source: LanguageModel, target: LanguageModel) -> None:
    """Weights of a whole model into one of the same config on a single rank, wherever that is."""
    weights = dict(source.named_parameters())
    for name, parameter in target.named_parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        local.copy_(weights[name])
