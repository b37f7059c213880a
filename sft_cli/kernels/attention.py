"""The slot `attention`: softmax attention that keeps packed samples apart without a mask.

transformers' own `sdpa` builds a T x T mask for a pack, and falls back to plain causal attention without a word when
it can't recognise one. Ours are told the segments. They are registered under names of their own, through transformers'
public registry, and a model is pointed to one by its config; transformers builds no mask for a name that is not its
own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sft_cli.kernels import flash_attention, flex

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


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
    """Causal attention through torch's `scaled_dot_product_attention`; of a pack, one call a segment.

    Args:
        query: (B, heads, T, head dim).
        key, value: (B, key-value heads, T, head dim).
        attention_mask: None: padding stands on the right, where no real token attends to it.
        cu_seq_lens_q: int32 (segments + 1,) of a pack (B = 1), else None. Read on the host.
        sliding_window: how many tokens a token sees, itself included; None: all before it.

    Returns:
        (B, T, heads, head dim), and None for the weights that nobody asked for.
    """
    assert attention_mask is None, "a mask switches packing off: the batch must carry none"
    segments = [query.shape[2]] if cu_seq_lens_q is None else cu_seq_lens_q.diff().tolist()
    outputs = []
    for q, k, v in zip(*(x.split(segments, dim=2) for x in (query, key, value)), strict=True):
        band = _band(q.shape[2], sliding_window, q.device)
        outputs.append(
            F.scaled_dot_product_attention(
                q, k, v, attn_mask=band, dropout_p=dropout, is_causal=band is None, scale=scaling, enable_gqa=True
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def _band(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """bool (T, T), true where a token sees another; None where plain causal attention is the same."""
    if window is None or length <= window:
        return None
    seen = torch.ones(length, length, dtype=torch.bool, device=device)
    return seen.tril().triu(1 - window)


ATTENTION = {
    "varlen": flash_attention.load_varlen,
    "flash_attention_2": flash_attention.load_flash_attention_2,
    "flash_attention_4": flash_attention.load_flash_attention_4,
    "flex": flex.load_flex,
    "sdpa": lambda: sdpa,
}
"""Backend to what loads it."""


def install(
    config: PreTrainedConfig,
    *,
    attention: str,
    expensive: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
) -> None:
    """Points every attention layer of a model with this config to what `expensive` makes of the chosen function."""
    # Here and not above: a check of kernels needs no transformers, and waits for no import of it.
    from transformers import AttentionInterface

    name = f"sftune_{attention}"
    AttentionInterface.register(name, expensive(ATTENTION[attention]()))
    config._attn_implementation = name
