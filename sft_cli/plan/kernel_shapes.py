"""Which kernel slots a model has, and the shapes that its layers call them with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from sft_cli.plan.architecture import Architecture, has_silu
from sft_cli.plan.model_types import text_config

Dtype = Literal["float32", "bfloat16", "float16"]
SLOTS = ("linear_attention", "conv", "attention", "norm", "gated_norm", "mlp", "loss")


class DeltaNetShapes(BaseModel):
    """Heads of a Gated DeltaNet layer, and its convolution."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_width: int


class PlainLayers(BaseModel):
    """What `norm: sftune` is compiled for, of decoder layers of the plain form."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    offset: float
    """Added to a norm's weight."""
    weights: Dtype
    """What layers see their parameters in, and the residual stream: not what they compute in under autocast."""
    head_norms: bool
    is_gated: bool
    """A gate lies behind each query head."""
    rotated: int
    """Numbers of a head that are rotated."""


class KernelShapes(BaseModel):
    """What a check of kernels needs to know of a model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: Dtype
    """What the layers compute in."""
    tokens: int
    """Slots of one micro-batch: the length that is timed."""
    hidden: int
    intermediate: int
    words: int
    heads: int
    key_value_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    """Each once; None is attention to all before."""
    delta_net: DeltaNetShapes | None


def shapes_of(shape: Architecture, dtype: str, tokens: int) -> KernelShapes:
    """The shapes of a model's layers.

    Args:
        dtype: the recipe's compute dtype.
        tokens: the recipe's `batching.tokens`.
    """
    delta_net = shape.delta_net
    experts = shape.experts
    is_sparse = experts is not None and all(shape.sparse)
    return KernelShapes.model_validate(
        {
            "dtype": dtype,
            "tokens": tokens,
            "hidden": shape.hidden_size,
            "intermediate": experts.intermediate_size if experts and is_sparse else shape.intermediate_size,
            "words": shape.vocab_size,
            "heads": shape.heads,
            "key_value_heads": shape.key_value_heads,
            "head_dim": shape.head_dim,
            "windows": tuple(dict.fromkeys(shape.windows)),
            "delta_net": delta_net
            and {
                "key_heads": delta_net.key_heads,
                "value_heads": delta_net.value_heads,
                "key_head_dim": delta_net.key_head_dim,
                "value_head_dim": delta_net.value_head_dim,
                "conv_width": delta_net.conv_kernel,
            },
        }
    )


def plain_layers_of(shape: Architecture, config: Mapping[str, Any], offset: float, weights: str) -> PlainLayers:
    """Of a family whose layers are plain.

    Args:
        config: config.json as read; it names the share of a head that is rotated.
        offset: the family's, of its norms.
        weights: the dtype that layers see their parameters in.
    """
    text = text_config(config)
    rotary = text.get("rope_parameters") or text.get("rope_scaling") or {}
    # Of transformers' families with such layers only hybrids rotate a part, and a quarter where no config says.
    told = rotary.get("partial_rotary_factor") or text.get("partial_rotary_factor") or 0.25
    return PlainLayers.model_validate(
        {
            "offset": offset,
            "weights": weights,
            "head_norms": shape.head_norms,
            "is_gated": shape.gated_attention,
            "rotated": int(shape.head_dim * told) if shape.gated_attention else shape.head_dim,
        }
    )


def slots_of(shape: Architecture, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The slots that a model's layers have.

    Args:
        config: config.json as read; it names the MLP's activation.
    """
    absent = set()
    if shape.delta_net is None:
        absent |= {"linear_attention", "conv", "gated_norm"}
    if all(shape.linear_attention):
        absent.add("attention")
    if shape.family == "gemma3" or not has_silu(text_config(config)):
        absent.add("mlp")
    return tuple(slot for slot in SLOTS if slot not in absent)
