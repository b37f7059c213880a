"""The heads of softmax attention around its kernel: head norms, rotation and output gate. Of backends in `HEADS`.

transformers' attention normalises queries and keys, splits off what is rotated, negates, multiplies, adds and puts all
together again, and its backward fills zeros for each of the parts. So each attention gets a forward of ours, in which
one function makes the heads, and another the gated output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sft_cli.kernels.importing import importing
from sft_cli.kernels.norm import eps_of, rms_norm
from sft_cli.plan.backends import TRITON


def rotated(
    x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float, offset: float, *, is_gated: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Heads, normalised and rotated: the halves of their first numbers against each other.

    Args:
        x: (B, T, heads, head dim); with a gate behind each head (B, T, heads, 2 * head dim).
        weight: (head dim,) of the norm; None: there is none.
        cos, sin: (B or 1, T, rotated): as many of a head's numbers as are rotated.
        eps, offset: see `norm.rms_norm`.

    Returns:
        (B, T, heads, head dim) as `x`; and the gates, (B, T, heads, head dim), a view of `x`; None where there are
        none.
    """
    heads, gate = x.chunk(2, dim=-1) if is_gated else (x, None)
    normed = heads if weight is None else rms_norm(heads, weight, eps, offset)
    turned, rest = normed.split([cos.shape[-1], normed.shape[-1] - cos.shape[-1]], dim=-1)
    first, second = turned.chunk(2, dim=-1)
    out = turned * cos.unsqueeze(2) + torch.cat([-second, first], dim=-1) * sin.unsqueeze(2)
    return torch.cat([out, rest], dim=-1).to(x.dtype), gate


def gated(x: Tensor, gate: Tensor) -> Tensor:
    """x * sigmoid(gate), of the same shape."""
    return x * gate.sigmoid()


@dataclass(frozen=True)
class Heads:
    """What one backend has of it."""

    rotated: Callable[..., tuple[Tensor, Tensor | None]]
    gated: Callable[[Tensor, Tensor], Tensor]


def load_own() -> Heads:
    """The kernels of `heads_triton.py`.

    Raises:
        KernelError: Triton can't be imported.
    """
    with importing(TRITON, slot="norm", instead="`norm: auto`"):
        from sft_cli.kernels import heads_triton

    return Heads(heads_triton.rotated, heads_triton.gated)


HEADS = {"sftune": load_own}
"""Backend of the slot `norm` to what loads it."""


_PROJECTIONS, _NORMS = {"q_proj", "k_proj", "v_proj", "o_proj"}, {"q_norm", "k_norm"}


def install(layers: Iterable[Any], *, backend: str, offset: float, windows: Iterable[int | None]) -> None:
    """Replaces the forward of the attention that layers have.

    Args:
        offset: see `norm.rms_norm`.
        windows: of each layer, how many tokens a token sees; None: all before it.

    Raises:
        KernelError: the backend's package can't be imported.
    """
    heads = HEADS[backend]()
    for layer, window in zip(layers, windows, strict=True):
        if (attention := attention_of(layer)) is not None:
            norms = {name for name, _ in attention.named_children()} - _PROJECTIONS
            assert norms in (set(), _NORMS), "a part that `forward` would leave out"
            eps = eps_of(attention.q_norm) if norms else None
            attention.forward = partial(forward, attention, heads=heads, eps=eps, offset=offset, window=window)


def attention_of(layer: nn.Module) -> Any | None:
    """The softmax attention of a decoder layer of transformers; None where its mixer is another."""
    return getattr(layer, "self_attn", None)


def forward(
    attention: Any,
    hidden_states: Tensor,
    *,
    heads: Heads,
    eps: float | None,
    offset: float,
    window: int | None,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """One attention of transformers without a cache.

    Args:
        hidden_states: (B, T, hidden).
        eps: of the norms of queries and keys; None: it has none.
        position_embeddings: cosines and sines; see `rotated`.
        options: what transformers passes to every layer, and attention to its kernel.

    Returns:
        (B, T, hidden), and None for the weights that nobody asked for.
    """
    width = attention.head_dim
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    query, key, value = (project(hidden_states) for project in projections)
    is_gated = query.shape[-1] == 2 * attention.o_proj.in_features
    of_query, of_key = (None, None) if eps is None else (attention.q_norm.weight, attention.k_norm.weight)
    (cos, sin), small = position_embeddings, eps or 0.0
    query = query.unflatten(-1, (-1, 2 * width if is_gated else width))
    query, gate = heads.rotated(query, of_query, cos, sin, small, offset, is_gated=is_gated)
    key, _ = heads.rotated(key.unflatten(-1, (-1, width)), of_key, cos, sin, small, offset)
    kernel = ALL_ATTENTION_FUNCTIONS[attention.config._attn_implementation]
    out, _ = kernel(
        attention,
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.unflatten(-1, (-1, width)).transpose(1, 2),
        attention_mask,
        dropout=attention.attention_dropout if attention.training else 0.0,
        scaling=attention.scaling,
        sliding_window=window,
        **options,
    )
    if gate is not None:
        out = heads.gated(out, gate)
    return attention.o_proj(out.flatten(2)), None
