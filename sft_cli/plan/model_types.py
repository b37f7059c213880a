"""The `model_type`s of config.json that have a file in `model/families`, and the config of a model's text part.

What a family needs is read here from the outside only: names, transformers' defaults, refusals by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sft_cli.errors import ModelError

GENERIC = "generic"
"""The family of everything else: whatever passes the checks of `worker/generic_probe.py`."""


@dataclass(frozen=True)
class ModelType:
    family: str
    """A file in `model/families`."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """transformers' values for keys that a config may leave out, where `Architecture` reads them."""


_HYBRID = {
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_EXPERTS = {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_key_value_heads": 2}
_GEMMA3 = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
_SLIDING_FROM_A_LAYER_ON = {"sliding_window": 4096, "max_window_layers": 28, "num_key_value_heads": 32}

MODEL_TYPES = {
    "llama": ModelType("llama"),
    "mistral": ModelType("mistral", {"sliding_window": 4096, "num_key_value_heads": 8}),
    "qwen2": ModelType("qwen2", _SLIDING_FROM_A_LAYER_ON),
    "qwen3": ModelType("qwen3", {**_SLIDING_FROM_A_LAYER_ON, "head_dim": 128}),
    "gemma3_text": ModelType("gemma3", _GEMMA3),
    "qwen3_5_text": ModelType("qwen3_5", {**_HYBRID, "num_key_value_heads": 4}),
    "qwen3_5_moe_text": ModelType("qwen3_5_moe", {**_HYBRID, **_EXPERTS, "num_experts": 256, "num_experts_per_tok": 8}),
    "qwen3_next": ModelType(
        "qwen3_next",
        {**_HYBRID, **_EXPERTS, "num_experts": 512, "num_experts_per_tok": 10, "decoder_sparse_step": 1},
    ),
}

_KINDS: dict[str, type] = {
    "architectures": list,
    "text_config": dict,
    "rope_parameters": dict,
    "rope_scaling": dict,
    "mlp_only_layers": list,
}
"""What a key must be where a config has it and it isn't null."""
_DTYPES = ("float32", "bfloat16", "float16")

TEXT_TYPE = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "gemma3": "gemma3_text"}
"""A vision-language `model_type` whose text model is trained, to the `model_type` of that."""


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the model that is trained: of a vision-language model its text part, else `config` itself.

    A flat config under a vision-language name (as text-only conversions have it) gets the text model's name.
    """
    text_type = TEXT_TYPE.get(str(config.get("model_type")))
    if text_type is None:
        return dict(config)
    if not isinstance(config.get("text_config"), Mapping):
        return {**config, "model_type": text_type}
    # What the outer config says of the whole model, where the inner one is silent.
    outer = {key: config[key] for key in ("dtype", "torch_dtype") if key in config}
    if text_type == "gemma3_text":
        # AutoModelForCausalLM loads the whole of Gemma 3, whose head is tied by the outer config.
        outer["tie_word_embeddings"] = config.get("tie_word_embeddings", True)
        return {**config["text_config"], **outer, "model_type": text_type}
    return {**outer, **config["text_config"], "model_type": text_type}


def refuse_changing_rotation(config: Mapping[str, Any], where: str | None) -> None:
    """ModelError for rotary embeddings whose frequencies follow the longest row of a batch.

    transformers computes them for the whole micro-batch, so a sample would depend on what it shares one with.
    """
    both_names = [config.get(key) or {} for key in ("rope_parameters", "rope_scaling")]
    per_kind = [value for rotary in both_names for value in rotary.values() if isinstance(value, dict)]
    for parameters in (*both_names, *per_kind):
        kind = parameters.get("rope_type", parameters.get("type"))
        if kind in ("dynamic", "longrope"):
            raise ModelError(
                f"rope_type {kind} sets its frequencies by the longest row of a micro-batch, so that a sample's "
                "numbers would depend on its neighbours",
                where=where,
                fix="Use the checkpoint for short contexts, or one whose rope_type is default, linear, llama3 or yarn.",
            )


def refuse_unsupported(config: Mapping[str, Any], where: str | None) -> None:
    """ModelError where no config of this kind can be trained, whatever its family."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelError(
            f"the model's config has model_type {model_type!r}, which is not a name",
            where=where,
            fix="Take config.json from the model's own repository again.",
        )
    for part in (config, text_config(config)):
        _refuse_other_kinds(part, where)
    if config.get("quantization_config") is not None:
        raise ModelError(
            "the checkpoint is quantised; its weights can't be trained in full",
            where=where,
            fix="Use the checkpoint in bfloat16 that it was made from.",
        )
    has_text_part = model_type in TEXT_TYPE
    if not has_text_part and ("text_config" in config or "vision_config" in config):
        raise ModelError(
            f"{model_type} is made of several models (its config has a text_config); of those the text part is "
            f"trained for {', '.join(sorted(TEXT_TYPE))} only",
            where=where,
            fix="Use a text-only checkpoint of it.",
        )
    architectures = [str(name) for name in config.get("architectures") or []]
    endings = ("ForCausalLM", "ForConditionalGeneration") if has_text_part else ("ForCausalLM",)
    if architectures and not any(name.endswith(endings) for name in architectures):
        raise ModelError(
            f"{', '.join(architectures)} is not a language model to fine-tune on chats",
            where=where,
            fix="Use a checkpoint whose architecture ends in ForCausalLM.",
        )


def _refuse_other_kinds(config: Mapping[str, Any], where: str | None) -> None:
    """ModelError for a value that is no list, object, data type or share where one is needed."""
    wrong = [
        (key, "a list" if kind is list else "an object")
        for key, kind in _KINDS.items()
        if config.get(key) is not None and not isinstance(config[key], kind)
    ]
    wrong += [
        (key, f"one of {', '.join(_DTYPES)}")
        for key in ("dtype", "torch_dtype")
        if config.get(key) is not None and config[key] not in _DTYPES
    ]
    dropout = config.get("attention_dropout")
    if dropout is not None and not (isinstance(dropout, (int, float)) and 0 <= dropout < 1):
        wrong.append(("attention_dropout", "a number from 0 up to but not 1"))
    if wrong:
        key, needed = wrong[0]
        raise ModelError(
            f"the model's config has {key}: {config[key]!r} where {needed} is needed",
            where=where,
            fix="Take config.json from the model's own repository again.",
        )


def stored_dtype(config: dict[str, Any]) -> str:
    """By torch's name: what weights are written in that have no source, as config.json says."""
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")
