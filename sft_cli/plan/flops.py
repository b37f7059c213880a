"""Model FLOPs of a token: what forward and backward must compute, recomputation not counted (the numerator of MFU)."""

from __future__ import annotations

from collections import Counter

from sft_cli.plan.architecture import Architecture, DeltaNet
from sft_cli.plan.parameters import count_parameters

BACKWARD_AND_FORWARD = 3
"""Backward makes two products, input and weight gradients, for each of forward (Kaplan et al. 2020, section 2.1)."""

DELTA_RULE_CHUNK_TOKENS = 64
"""Tokens of a chunk in every published kernel of the gated delta rule, and in ours."""


def flops_per_token(shape: Architecture, row_tokens: float) -> float:
    """Floating-point operations of forward and backward for one token, a multiply-add counted as two.

        6 * (weights of linear layers and output projection; of experts those that a token takes)
        + 3 * sum over softmax layers of attention_flops
        + 3 * sum over Gated DeltaNet layers of (delta_rule_flops + convolution_flops)

    The first two terms are PaLM's appendix B (Chowdhery et al. 2022, arXiv:2204.02311), with the attention term
    halved because it is causal. Embedding lookup, norms, activations and the optimizer are left out, as there.

    Args:
        shape: the model.
        row_tokens: length of the row that a token stands in; it attends to half of it on average. Where lengths
            differ, the mean over tokens: sum of squared lengths over sum of lengths.
    """
    return TokenWork(shape)(row_tokens)


class TokenWork:
    """`flops_per_token` of one model, for many lengths: parameters are counted once."""

    def __init__(self, shape: Architecture) -> None:
        self._shape = shape
        softmax = [layer for layer, linear in enumerate(shape.linear_attention) if not linear]
        self._softmax_layers = Counter(shape.windows[layer] for layer in softmax)
        mixing = 0.0
        if shape.delta_net is not None:
            delta_layers = shape.linear_attention.count(True)
            mixing = delta_layers * (delta_rule_flops(shape.delta_net) + convolution_flops(shape.delta_net))
        self._at_any_length = BACKWARD_AND_FORWARD * (2 * count_parameters(shape).matmul + mixing)

    def __call__(self, row_tokens: float) -> float:
        attention = sum(
            layers * attention_flops(self._shape, row_tokens, window) for window, layers in self._softmax_layers.items()
        )
        return self._at_any_length + BACKWARD_AND_FORWARD * attention


def attention_flops(shape: Architecture, row_tokens: float, window: int | None = None) -> float:
    """Forward FLOPs of scores and weighted values of one token in one layer, without projections.

    PaLM counts 4 * heads * head_dim * T (2 for Q K^T, 2 for the product with V); a causal token sees T / 2, and with
    a window w below T the mean of min(t, w) over t, w - w^2 / (2 T).
    """
    seen = row_tokens / 2 if window is None or window >= row_tokens else window - window**2 / (2 * row_tokens)
    return 4 * shape.query_dim * seen


def delta_rule_flops(delta: DeltaNet) -> float:
    """Forward FLOPs of the gated delta rule of one token in one layer, without projections.

    The chunked WY form (Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464, section 3.3). Per value head and chunk of
    C tokens, with key dim K and value dim V:

        2 C^2 K        K K^T, the triangular system
        C^2 (K + V)    its solution for the corrected keys and values (n^2 operations a right-hand side)
        2 C^2 K        Q K^T
        2 C^2 V        its product with the new values
        6 C K V        old keys times state, queries times state, the state's update

    so C (5 K + 3 V) + 6 K V a token.
    """
    chunk, key, value = DELTA_RULE_CHUNK_TOKENS, delta.key_head_dim, delta.value_head_dim
    return delta.value_heads * (chunk * (5 * key + 3 * value) + 6 * key * value)


def convolution_flops(delta: DeltaNet) -> float:
    """Forward FLOPs of the depthwise convolution of one token in one layer: one multiply-add a tap and channel."""
    return 2 * delta.conv_kernel * delta.conv_dim
