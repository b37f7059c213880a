"""What a model's config says about its shape, in one vocabulary for all families.

Parameters, FLOPs and memory are computed from an `Architecture`; nothing else of the plan reads a config's keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sft_cli.errors import ModelError
from sft_cli.plan.config_reader import TAKE_AGAIN, ConfigReader
from sft_cli.plan.model_types import MODEL_TYPES, refuse_changing_rotation, refuse_unsupported, text_config
from sft_cli.plan.shapes import expand_interval

if TYPE_CHECKING:
    from sft_cli.plan.probed_model import ProbedModel


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
class Experts:
    """Shape of a sparse MLP: a router, experts of which each token takes a few, and one that every token takes."""

    count: int
    per_token: int
    intermediate_size: int
    shared_intermediate_size: int


@dataclass(frozen=True)
class Architecture:
    """Shape of a decoder with gated MLPs, RMSNorm and grouped-query attention."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Of a dense MLP; unused where every layer is sparse."""
    swiglu: bool
    """Its MLPs have SiLU between their projections; False where nobody knows."""
    linear_attention: tuple[bool, ...]
    """Per layer: Gated DeltaNet, or else softmax attention."""
    windows: tuple[int | None, ...]
    """Per layer: tokens that a token attends to, itself included; None where it attends to all before it."""
    sparse: tuple[bool, ...]
    """Per layer: experts, or else one dense MLP."""
    heads: int
    key_value_heads: int
    head_dim: int
    gated_attention: bool
    """The query projection also yields an output gate, so it is twice as wide."""
    head_norms: bool
    """RMSNorm of each query and key head."""
    norms_per_layer: int
    """Of width hidden_size: 2, or 4 where attention and MLP are normalised on both sides."""
    query_key_value_bias: bool
    output_bias: bool
    """Of the attention's output projection."""
    mlp_bias: bool
    tied_embeddings: bool
    delta_net: DeltaNet | None
    """None where no layer is linear attention."""
    experts: Experts | None
    """None where no layer is sparse."""
    probed: ProbedModel | None = None
    """Of a generic model: parameters as counted on the model itself, which this shape only approximates."""

    @property
    def layers(self) -> int:
        return len(self.linear_attention)

    @property
    def query_dim(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_value_dim(self) -> int:
        return self.key_value_heads * self.head_dim


def is_known(config: Mapping[str, Any]) -> bool:
    """Whether a family file knows this config's `model_type`."""
    return str(text_config(config).get("model_type")) in MODEL_TYPES


def has_silu(config: Mapping[str, Any]) -> bool:
    """Whether the MLPs' activation is SiLU, which it is where a config names none.

    Args:
        config: of text.
    """
    activation = config.get("hidden_act") or config.get("hidden_activation") or "silu"
    return activation in ("silu", "swish")


def read_architecture(config: Mapping[str, Any], where: str | None = None) -> Architecture:
    """The shape in a transformers config, with transformers' defaults for keys that it leaves out.

    Args:
        config: config.json as read; of a vision-language model the text part counts.
        where: the place for errors, such as the recipe's line or the file.

    Raises:
        ModelError: a `model_type` without a family, a quantised model, a key missing or of a wrong type, soft-capped
            logits, attention in both directions, another activation in the convolution, rotary frequencies that
            change with the length.
    """
    refuse_unsupported(config, where)
    config = text_config(config)
    if config["model_type"] not in MODEL_TYPES:
        raise ModelError(
            f"model_type {config['model_type']!r} has no family of its own",
            where=where,
            fix=f"There are: {', '.join(sorted(MODEL_TYPES))}.",
        )
    refuse_changing_rotation(config, where)
    model_type = MODEL_TYPES[config["model_type"]]
    read = ConfigReader({**model_type.defaults, **config}, where)
    family = model_type.family
    layers, hidden_size, heads = (
        read.count(key) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    hybrid = family in ("qwen3_5", "qwen3_5_moe", "qwen3_next")
    if family == "gemma3":
        _refuse_gemma3_variants(read)
    if hybrid and (activation := config.get("hidden_act") or "silu") not in ("silu", "swish"):
        raise ModelError(
            f"hidden_act is {activation}; the convolution of Gated DeltaNet layers is built with SiLU only",
            where=where,
            fix=TAKE_AGAIN,
        )
    linear = _linear_layers(read, layers) if hybrid else (False,) * layers
    sparse = _sparse_layers(read, layers, family)
    key_value_heads = read.count("num_key_value_heads", heads)
    _require_multiple(read, "num_attention_heads", heads, "num_key_value_heads", key_value_heads)
    head_dim = read.count("head_dim", hidden_size // heads)
    if head_dim % 2:
        raise ModelError(
            f"heads of {head_dim} are odd, and rotary embeddings turn pairs (head_dim, or hidden_size over "
            "num_attention_heads)",
            where=where,
            fix=TAKE_AGAIN,
        )
    attention_bias = family not in ("mistral", "qwen2") and read.flag("attention_bias")
    return Architecture(
        family=family,
        vocab_size=read.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=read.count("intermediate_size", hidden_size if all(sparse) else None),
        swiglu=family != "gemma3" and has_silu(config),
        linear_attention=linear,
        windows=_windows(read, layers, family),
        sparse=sparse,
        heads=heads,
        key_value_heads=key_value_heads,
        head_dim=head_dim,
        gated_attention=hybrid,
        head_norms=hybrid or family in ("qwen3", "gemma3"),
        norms_per_layer=4 if family == "gemma3" else 2,
        query_key_value_bias=family == "qwen2" or attention_bias,
        output_bias=attention_bias,
        mlp_bias=family == "llama" and read.flag("mlp_bias"),
        tied_embeddings=read.flag("tie_word_embeddings"),
        delta_net=_delta_net(read) if any(linear) else None,
        experts=_experts(read) if any(sparse) else None,
    )


def _require_multiple(read: ConfigReader, key: str, value: int, part: str, divisor: int) -> None:
    if value % divisor:
        raise ModelError(
            f"the model's config has {key}: {value}, which is no multiple of {part}: {divisor}",
            where=read.where,
            fix=TAKE_AGAIN,
        )


def _delta_net(read: ConfigReader) -> DeltaNet:
    shape = DeltaNet(
        key_heads=read.count("linear_num_key_heads"),
        value_heads=read.count("linear_num_value_heads"),
        key_head_dim=read.count("linear_key_head_dim"),
        value_head_dim=read.count("linear_value_head_dim"),
        conv_kernel=read.count("linear_conv_kernel_dim"),
    )
    _require_multiple(read, "linear_num_value_heads", shape.value_heads, "linear_num_key_heads", shape.key_heads)
    return shape


def _experts(read: ConfigReader) -> Experts:
    shape = Experts(
        count=read.count("num_experts"),
        per_token=read.count("num_experts_per_tok"),
        intermediate_size=read.count("moe_intermediate_size"),
        shared_intermediate_size=read.count("shared_expert_intermediate_size"),
    )
    if shape.per_token > shape.count:
        raise ModelError(
            f"the model's config has num_experts_per_tok: {shape.per_token}, and num_experts: {shape.count}",
            where=read.where,
            fix=TAKE_AGAIN,
        )
    return shape


def _linear_layers(read: ConfigReader, layers: int) -> tuple[bool, ...]:
    kinds = read.layer_kinds(layers, ("linear_attention", "full_attention"))
    if kinds is None:
        kinds = expand_interval(read.count("full_attention_interval"), layers)
    return tuple(kind == "linear_attention" for kind in kinds)


def _sparse_layers(read: ConfigReader, layers: int, family: str) -> tuple[bool, ...]:
    if family == "qwen3_5_moe":
        return (True,) * layers
    if family != "qwen3_next":
        return (False,) * layers
    step, dense = read.count("decoder_sparse_step"), read.config.get("mlp_only_layers") or []
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))


def _windows(read: ConfigReader, layers: int, family: str) -> tuple[int | None, ...]:
    if family == "mistral":
        window = read.count("sliding_window") if read.config["sliding_window"] is not None else None
        return (window,) * layers
    if family in ("qwen2", "qwen3"):
        if not read.flag("use_sliding_window"):
            return (None,) * layers
        first = read.count("max_window_layers") if read.config["max_window_layers"] else 0
        usual = ["full_attention"] * min(first, layers) + ["sliding_attention"] * (layers - first)
    elif family == "gemma3":
        pattern = read.count("sliding_window_pattern")
        usual = ["sliding_attention" if (layer + 1) % pattern else "full_attention" for layer in range(layers)]
    else:
        return (None,) * layers
    kinds = read.layer_kinds(layers, ("sliding_attention", "full_attention")) or usual
    return tuple(read.count("sliding_window") if kind == "sliding_attention" else None for kind in kinds)


def _refuse_gemma3_variants(read: ConfigReader) -> None:
    for key, what in (
        ("final_logit_softcapping", "caps its logits"),
        ("attn_logit_softcapping", "caps its attention scores"),
        ("use_bidirectional_attention", "attends in both directions"),
    ):
        if read.config.get(key):
            raise ModelError(
                f"this model {what} ({key}: {read.config[key]}), which is not built in this version",
                where=read.where,
                fix="Gemma 3 as published has none of this: take config.json from the model's own repository again.",
            )
