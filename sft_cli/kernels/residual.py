"""The residual stream of a decoder layer, whose sums the norms take along: of backends in `norm.STREAM_NORM`.

The layers of transformers add and normalise in two statements, and their backward adds where the stream forks. So each
layer gets a forward of ours, in which the norm is handed both summands, and hands the stream on: backward then has one
node at each fork. The sum at the end of a layer stays one of its own: the norm that comes next is another layer's, and
a checkpointed layer would keep two tensors in place of that one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import Tensor, nn

from sft_cli.kernels.heads import attention_of


def install(layers: Iterable[nn.Module]) -> None:
    """Replaces the forward of layers of the form h + mixer(norm(h)), then h + mlp(norm(h)), once their norms are in
    place."""
    for layer in layers:
        layer.forward = partial(forward, layer)  # type: ignore[method-assign]


def forward(layer: Any, hidden_states: Tensor, **options: Any) -> Tensor:
    """One decoder layer of transformers.

    Args:
        hidden_states: (B, T, hidden).
        options: what transformers passes to every layer, and the layer to its mixer.
    """
    stream, normed = layer.input_layernorm(hidden_states, goes_on=True)
    attention = attention_of(layer)
    mixer = layer.linear_attn if attention is None else attention
    mixed = mixer(hidden_states=normed, **options)
    if isinstance(mixed, tuple):  # an attention returns its weights, too
        mixed = mixed[0]
    stream, normed = layer.post_attention_layernorm(mixed, stream, goes_on=True)
    added = layer.mlp(normed)
    if isinstance(added, tuple):  # experts may return their router's logits, too
        added = added[0]
    out: Tensor = stream + added
    return out
