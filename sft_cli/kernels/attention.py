"""The slot `attention`: softmax attention that keeps packed samples apart without a mask.

transformers' own `sdpa` builds a T x T mask for a pack, and falls back to plain causal attention without a word when
it can't recognise one. Ours are told the segments. They are registered under names of their own, through transformers'
public registry, and a model is pointed to one by its config; transformers builds no mask for a name that is not its
own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig

from sft_cli.errors import KernelError

Attention = Callable[..., tuple[Tensor, None]]


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


def _varlen() -> Attention:
    from torch.nn.attention.varlen import varlen_attn

    @functools.wraps(varlen_attn)
    def varlen(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        scaling: float | None = None,
        dropout: float = 0.0,
        cu_seq_lens_q: Tensor | None = None,
        max_length_q: int | None = None,
        sliding_window: int | None = None,
        **unused: object,
    ) -> tuple[Tensor, None]:
        """As `sdpa`, all segments in one call of torch's FlashAttention; bfloat16 or float16 on a GPU."""
        assert attention_mask is None, "a mask switches packing off: the batch must carry none"
        if dropout:
            raise KernelError(
                f"the model drops {dropout:.0%} of its attention weights, and torch's varlen attention can't",
                where="kernels.attention",
                fix="Write `attention: sdpa`.",
            )
        rows, _, length, _ = query.shape
        if cu_seq_lens_q is None:
            cu_seq_lens_q = torch.arange(0, rows * length + 1, length, dtype=torch.int32, device=query.device)
            max_length_q = length
        assert max_length_q is not None, "a pack says how long its longest segment is"
        # Under autocast head norms and rotation leave float32; the value comes straight out of its projection.
        query, key = query.to(value.dtype), key.to(value.dtype)
        flat_query, flat_key, flat_value = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
        window = (-1 if sliding_window is None else sliding_window - 1, 0)
        out = varlen_attn(
            flat_query, flat_key, flat_value, cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q,
            scale=scaling, window_size=window, **_grouped(varlen_attn),
        )  # fmt: skip
        return out.unflatten(0, (rows, length)), None

    return varlen


@functools.cache
def _grouped(varlen_attn: Callable[..., Tensor]) -> dict[str, bool]:
    """torch 2.11 groups query heads unasked; later versions want to be told."""
    import inspect

    return {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


ATTENTION: dict[str, Callable[[], Attention]] = {"sdpa": lambda: sdpa, "varlen": _varlen}
"""Backend to what loads it."""


def install(config: PreTrainedConfig, *, attention: str) -> None:
    """Points every attention layer of a model with this config to the chosen function."""
    name = f"sftune_{attention}"
    AttentionInterface.register(name, ATTENTION[attention]())
    config._attn_implementation = name
