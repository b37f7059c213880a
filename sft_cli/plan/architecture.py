"""What a model's config says about its shape, in one vocabulary for all families.

Parameters, FLOPs and memory are computed from an `Architecture`; nothing else of the plan reads a config's keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sft_cli.errors import ModelError
from sft_cli.plan.shapes import expand_interval

FAMILY_OF_MODEL_TYPE = {"qwen3_5_text": "qwen3_5", "qwen3_5": "qwen3_5", "llama": "llama", "qwen3": "qwen3"}
"""`model_type` of config.json to the file in `model/families/` that knows the architecture."""


@dataclass(frozen=True)
class DeltaNet:
    """Shape of a Gated DeltaNet layer; query heads equal key heads, value heads are a multiple of them."""

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int

    @property
    def key_dim(self) -> int:
        return self.key_heads * self.key_head_dim

    @property
    def value_dim(self) -> int:
        return self.value_heads * self.value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_dim + self.value_dim


@dataclass(frozen=True)
class Architecture:
    """Shape of a decoder with SwiGLU MLPs, RMSNorm and grouped-query attention."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    linear_attention: tuple[bool, ...]
    """Per layer: Gated DeltaNet, or else softmax attention."""
    heads: int
    key_value_heads: int
    head_dim: int
    gated_attention: bool
    """The query projection also yields an output gate, so it is twice as wide."""
    head_norms: bool
    """RMSNorm of each query and key head."""
    attention_bias: bool
    mlp_bias: bool
    tied_embeddings: bool
    delta_net: DeltaNet | None
    """None where no layer is linear attention."""

    @property
    def layers(self) -> int:
        return len(self.linear_attention)

    @property
    def query_dim(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_value_dim(self) -> int:
        return self.key_value_heads * self.head_dim


def read_architecture(config: Mapping[str, Any], where: str | None = None) -> Architecture:
    """The shape in a transformers config, with transformers' defaults for keys that it leaves out.

    Args:
        config: config.json as read.
        where: the place for errors, such as the recipe's line or the file.

    Raises:
        ModelError: a family that is not supported, a vision-language or quantised model, a key missing or of a
            wrong type, sliding-window attention.
    """
    family = _family(config, where)
    read = _Reader(config, where)
    layers = read.count("num_hidden_layers")
    hidden_size = read.count("hidden_size")
    heads = read.count("num_attention_heads")
    qwen3_5 = family == "qwen3_5"
    default_head_dim = {"qwen3_5": 256, "qwen3": 128, "llama": hidden_size // heads}[family]
    linear = _linear_layers(read, layers) if qwen3_5 else _softmax_layers(config, layers, where)
    delta_net = DeltaNet(
        key_heads=read.count("linear_num_key_heads", 16),
        value_heads=read.count("linear_num_value_heads", 32),
        key_head_dim=read.count("linear_key_head_dim", 128),
        value_head_dim=read.count("linear_value_head_dim", 128),
        conv_kernel=read.count("linear_conv_kernel_dim", 4),
    )
    return Architecture(
        family=family,
        vocab_size=read.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=read.count("intermediate_size"),
        linear_attention=linear,
        heads=heads,
        key_value_heads=read.count("num_key_value_heads", heads),
        head_dim=read.count("head_dim", default_head_dim),
        gated_attention=qwen3_5,
        head_norms=family in ("qwen3_5", "qwen3"),
        attention_bias=read.flag("attention_bias"),
        mlp_bias=family == "llama" and read.flag("mlp_bias"),
        tied_embeddings=read.flag("tie_word_embeddings"),
        delta_net=delta_net if any(linear) else None,
    )


def _family(config: Mapping[str, Any], where: str | None) -> str:
    model_type = config.get("model_type")
    if "text_config" in config or "vision_config" in config:
        raise ModelError(
            f"a vision-language model ({model_type}: its config has a text_config) is not built yet in this version",
            where=where,
            fix="Use a text-only checkpoint: model_type qwen3_5_text, qwen3 or llama.",
        )
    if "quantization_config" in config:
        raise ModelError(
            "the checkpoint is quantised; its weights can't be trained in full",
            where=where,
            fix="Use the checkpoint in bfloat16 that it was made from.",
        )
    family = FAMILY_OF_MODEL_TYPE.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise ModelError(
            f"model_type {model_type!r} is not supported yet",
            where=where,
            fix=f"Supported: {', '.join(sorted(FAMILY_OF_MODEL_TYPE))}.",
        )
    architectures = config.get("architectures") or []
    if architectures and not any(str(name).endswith("ForCausalLM") for name in architectures):
        raise ModelError(
            f"{', '.join(map(str, architectures))} is not a language model to fine-tune on chats",
            where=where,
            fix="Use a checkpoint whose architecture ends in ForCausalLM.",
        )
    return family


def _linear_layers(read: _Reader, layers: int) -> tuple[bool, ...]:
    kinds = read.config.get("layer_types") or expand_interval(read.count("full_attention_interval", 4), layers)
    unknown = set(kinds) - {"linear_attention", "full_attention"}
    if len(kinds) != layers or unknown:
        raise ModelError(
            f"layer_types has {len(kinds)} entries for {layers} layers, with {', '.join(sorted(map(str, set(kinds))))}",
            where=read.where,
            fix="Name linear_attention or full_attention for each layer.",
        )
    return tuple(kind == "linear_attention" for kind in kinds)


def _softmax_layers(config: Mapping[str, Any], layers: int, where: str | None) -> tuple[bool, ...]:
    if config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ()):
        raise ModelError(
            "sliding-window attention is not built yet in this version",
            where=where,
            fix="Use a model with full attention in every layer.",
        )
    return (False,) * layers


@dataclass(frozen=True)
class _Reader:
    config: Mapping[str, Any]
    where: str | None

    def count(self, key: str, default: int | None = None) -> int:
        value = self.config.get(key)
        if value is None:
            value = default
        if type(value) is not int or value < 1:
            raise ModelError(
                f"the model's config has no usable {key}: a whole number above 0 is needed, not {value!r}",
                where=self.where,
                fix="Take config.json from the model's own repository again.",
            )
        return value

    def flag(self, key: str) -> bool:
        value = self.config.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise ModelError(
                f"the model's config has {key}: {value!r} where true or false is needed",
                where=self.where,
                fix="Take config.json from the model's own repository again.",
            )
        return value
