"""The slot `attention`: softmax attention that keeps packed samples apart without a mask.

transformers' own `sdpa` builds a T x T mask for a pack, and falls back to plain causal attention without a word when
it can't recognise one. Ours is told the segments. It is registered under a name of its own, through transformers'
public registry, and a model is pointed to it by its config.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig


def sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: Tensor | None = None,
    sliding_window: int | None = None,
    **unused: object,
) -> tuple[Tensor, None]:
    """Causal attention through torch's `scaled_dot_product_attention`, one call a segment.

    Args:
        query: (B, heads, T, head dim).
        key, value: (B, key-value heads, T, head dim).
        attention_mask: None: padding stands on the right, where no real token attends to it.
        cu_seq_lens_q: int32 (segments + 1,) of a pack (B = 1), else None.

    Returns:
        (B, T, heads, head dim), and None for the weights that nobody asked for.
    """
    assert attention_mask is None, "a mask switches packing off: the batch must carry none"
    assert sliding_window is None, "the families refuse sliding windows"
    segments = [query.shape[2]] if cu_seq_lens_q is None else cu_seq_lens_q.diff().tolist()
    outputs = [
        F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=True)
        for q, k, v in zip(*(x.split(segments, dim=2) for x in (query, key, value)), strict=True)
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


ATTENTION: dict[str, Callable[..., tuple[Tensor, None]]] = {"sdpa": sdpa}


def install(config: PreTrainedConfig, *, attention: str) -> None:
    """Points every attention layer of a model with this config to the chosen function."""
    name = f"sftune_{attention}"
    AttentionInterface.register(name, ATTENTION[attention])
    config._attn_implementation = name
