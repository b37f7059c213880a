"""torch's FlexAttention, compiled, with a block mask that keeps segments apart. Forward and backward on GPUs only."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, wraps
from typing import Any

import torch
from torch import Tensor, nn


def load_flex() -> Callable[..., tuple[Tensor, None]]:
    """FlexAttention, with the arguments of `attention.sdpa`; no dropout."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    @cache
    def compiled() -> Callable[..., Tensor]:
        """Without compilation it builds the whole T x T matrix; a CPU has no backward to compile."""
        return torch.compile(flex_attention, dynamic=False)

    @lru_cache(maxsize=4)
    def block_mask(cu_seq_lens: Tensor | None, length: int, window: int | None, device: torch.device) -> Any:
        """Kept for a while: all layers of a micro-batch bring the same tensor."""
        token = torch.arange(length, device=device)
        segment = torch.zeros_like(token)
        if cu_seq_lens is not None:
            segment = torch.bucketize(token, cu_seq_lens[1:], right=True)
        reach = length if window is None else window

        def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (segment[query] == segment[key]) & (query >= key) & (query - key < reach)

        return create_block_mask(seen, None, None, length, length, device=device)

    @wraps(flex_attention)
    def flex(
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
        """As `attention.sdpa`, in one call."""
        assert attention_mask is None, "a mask switches packing off: the batch must carry none"
        assert not dropout, "FlexAttention drops no weights"
        run = compiled() if query.is_cuda else flex_attention
        mask = block_mask(cu_seq_lens_q, query.shape[2], sliding_window, query.device)
        out = run(query, key, value, block_mask=mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1])
        return out.transpose(1, 2).contiguous(), None

    return flex
