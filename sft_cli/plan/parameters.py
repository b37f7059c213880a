"""Trained parameters by what they belong to: exact arithmetic from the shape, checked against transformers' modules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sft_cli.plan.architecture import Architecture, DeltaNet, Experts
from sft_cli.plan.probed_model import ProbedModel


@dataclass(frozen=True)
class LayerParameters:
    """One decoder layer. `mixer` is its attention or Gated DeltaNet without the two norms around it."""

    linear_attention: bool
    mixer: int
    mlp: int
    norms: int
    matmul: int
    """Those of `mixer` and `mlp` that multiply a token's vector: linear weights, without convolution, norms, biases.
    Of experts, only as many as a token takes."""

    @property
    def total(self) -> int:
        return self.mixer + self.mlp + self.norms


@dataclass(frozen=True)
class Parameters:
    embedding: int
    layers: tuple[LayerParameters, ...]
    final_norm: int
    head: int
    """The output projection; 0 where it is the embedding (tied)."""
    head_matmul: int
    """Weights that the output projection multiplies by: `head`, or the embedding where tied."""

    @cached_property
    def total(self) -> int:
        """All trained parameters; a tied embedding counts once."""
        return self.embedding + sum(layer.total for layer in self.layers) + self.final_norm + self.head

    @cached_property
    def matmul(self) -> int:
        """Weights that every token is multiplied by: linear layers and output projection, no embedding lookup."""
        return sum(layer.matmul for layer in self.layers) + self.head_matmul


def count_parameters(shape: Architecture) -> Parameters:
    """Trained parameters of a model, by part. MTP heads and vision towers are not part of it."""
    if shape.probed is not None:
        return _counted(shape.probed)
    vocabulary = shape.vocab_size * shape.hidden_size
    return Parameters(
        embedding=vocabulary,
        layers=tuple(_layer(shape, layer) for layer in range(shape.layers)),
        final_norm=shape.hidden_size,
        head=0 if shape.tied_embeddings else vocabulary,
        head_matmul=vocabulary,
    )


def _counted(model: ProbedModel) -> Parameters:
    """A generic model's, by the parts that are known; a layer's whole is under `mixer`."""
    return Parameters(
        embedding=model.embedding,
        layers=tuple(
            LayerParameters(linear_attention=False, mixer=layer.total, mlp=0, norms=0, matmul=layer.matmul)
            for layer in model.layers
        ),
        final_norm=model.final_norm,
        head=0 if model.tied_embeddings else model.embedding,
        head_matmul=model.embedding,
    )


def _layer(shape: Architecture, layer: int) -> LayerParameters:
    linear = shape.linear_attention[layer]
    if linear:
        assert shape.delta_net is not None, "a linear-attention layer without its shape"
        mixer, mixer_matmul = _delta_net(shape.hidden_size, shape.delta_net)
    else:
        mixer, mixer_matmul = _attention(shape)
    if shape.sparse[layer]:
        assert shape.experts is not None, "a sparse layer without its experts"
        mlp, mlp_matmul = _sparse_mlp(shape.hidden_size, shape.experts)
    else:
        mlp_matmul = 3 * shape.hidden_size * shape.intermediate_size
        mlp = mlp_matmul + (2 * shape.intermediate_size + shape.hidden_size if shape.mlp_bias else 0)
    return LayerParameters(
        linear_attention=linear,
        mixer=mixer,
        mlp=mlp,
        norms=shape.norms_per_layer * shape.hidden_size,
        matmul=mixer_matmul + mlp_matmul,
    )


def _sparse_mlp(hidden_size: int, experts: Experts) -> tuple[int, int]:
    """Parameters, and those that one token is multiplied by: router, its experts, the shared one and its gate."""
    one = 3 * hidden_size * experts.intermediate_size
    every_token = hidden_size * (experts.count + 3 * experts.shared_intermediate_size + 1)
    return every_token + experts.count * one, every_token + experts.per_token * one


def _attention(shape: Architecture) -> tuple[int, int]:
    """Parameters, and those of them in linear weights."""
    query_out = shape.query_dim * (2 if shape.gated_attention else 1)
    key_value_out = 2 * shape.key_value_dim
    matmul = shape.hidden_size * (query_out + key_value_out) + shape.query_dim * shape.hidden_size
    bias = query_out + key_value_out if shape.query_key_value_bias else 0
    bias += shape.hidden_size if shape.output_bias else 0
    head_norms = 2 * shape.head_dim if shape.head_norms else 0
    return matmul + bias + head_norms, matmul


def _delta_net(hidden_size: int, delta: DeltaNet) -> tuple[int, int]:
    """Parameters, and those of them in linear weights: the projections to q, k, v, z, b and a, and out_proj."""
    matmul = hidden_size * (delta.conv_dim + delta.value_dim + 2 * delta.value_heads) + delta.value_dim * hidden_size
    convolution = delta.conv_dim * delta.conv_kernel
    a_log_and_dt_bias = 2 * delta.value_heads
    gated_norm = delta.value_head_dim
    return matmul + convolution + a_log_and_dt_bias + gated_norm, matmul
