"""FlashAttention over the segments of a pack: torch's own, and the packages flash-attn (2.8) and flash-attn-4 (4.0)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sft_cli.errors import KernelError
from sft_cli.kernels.importing import importing
from sft_cli.plan.backends import FLASH_ATTN, FLASH_ATTN_4

Attention = Callable[..., tuple[Tensor, None]]


def load_varlen() -> Attention:
    """torch's own FlashAttention over segments, with the arguments of `attention.sdpa`."""
    from torch.nn.attention.varlen import varlen_attn

    def call(rows: Iterator[Tensor], options: _Options) -> Tensor:
        if options.dropout:
            raise KernelError(
                f"the model drops {options.dropout:.0%} of its attention weights, and torch's varlen attention can't",
                where="kernels.attention",
                fix="Write `attention: sdpa`.",
            )
        return varlen_attn(
            *rows, options.bounds, options.bounds, options.longest, options.longest,
            scale=options.scaling, window_size=_window(options.window), **_grouped(varlen_attn),
        )  # fmt: skip

    return _over_segments(varlen_attn, call)


def load_flash_attention_2() -> Attention:
    """FlashAttention 2 of the package flash-attn, with the arguments of `attention.sdpa`.

    Raises:
        KernelError: the package can't be imported.
    """
    with importing(FLASH_ATTN, slot="attention", instead="`attention: auto`"):
        from flash_attn import flash_attn_varlen_func

    def call(rows: Iterator[Tensor], options: _Options) -> Tensor:
        out: Tensor = flash_attn_varlen_func(
            *rows, options.bounds, options.bounds, options.longest, options.longest,
            dropout_p=options.dropout, softmax_scale=options.scaling, causal=True, window_size=_window(options.window),
        )  # fmt: skip
        return out

    return _over_segments(flash_attn_varlen_func, call)


def load_flash_attention_4() -> Attention:
    """FlashAttention 4 of the package flash-attn-4 (CuTe DSL), with the arguments of `attention.sdpa`; no dropout.

    Raises:
        KernelError: the package can't be imported.
    """
    with importing(FLASH_ATTN_4, slot="attention", instead="`attention: auto`"):
        from flash_attn.cute import flash_attn_varlen_func

    def call(rows: Iterator[Tensor], options: _Options) -> Tensor:
        assert not options.dropout, "FlashAttention 4 drops no weights"
        out: Tensor = flash_attn_varlen_func(
            *rows,
            cu_seqlens_q=options.bounds, cu_seqlens_k=options.bounds,
            max_seqlen_q=options.longest, max_seqlen_k=options.longest,
            softmax_scale=options.scaling, causal=True,
            window_size=(None if options.window is None else options.window - 1, 0),
        )[0]  # fmt: skip
        return out

    return _over_segments(flash_attn_varlen_func, call)


@dataclass(frozen=True, eq=False)
class _Options:
    """What every FlashAttention over segments wants to know, beside query, key and value."""

    bounds: Tensor
    """int32 (segments + 1,) from 0 to the number of tokens."""
    longest: int
    """Tokens of the longest segment."""
    scaling: float | None
    window: int | None
    """Tokens that a token sees, itself included; None: all before it."""
    dropout: float


def _over_segments(kernel: Callable[..., Any], call: Callable[[Iterator[Tensor], _Options], Tensor]) -> Attention:
    """The arguments of `attention.sdpa` around a kernel that takes all segments in one call.

    Args:
        kernel: of the package, for kernels.json.
        call: it, from query, key and value as (tokens, heads, head dim) in one 16-bit dtype to the same.
    """

    @functools.wraps(kernel)
    def attention(
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
        assert attention_mask is None, "a mask switches packing off: the batch must carry none"
        bounds, longest = _segments(query, cu_seq_lens_q, max_length_q)
        out = call(_flat(query, key, value), _Options(bounds, longest, scaling, sliding_window, dropout))
        return out.unflatten(0, (query.shape[0], query.shape[2])), None

    return attention


def _segments(query: Tensor, cu_seq_lens: Tensor | None, longest: int | None) -> tuple[Tensor, int]:
    """Bounds and longest length; of padded rows, each row is a segment."""
    rows, _, length, _ = query.shape
    if cu_seq_lens is None:
        return torch.arange(0, rows * length + 1, length, dtype=torch.int32, device=query.device), length
    assert longest is not None, "a pack says how long its longest segment is"
    return cu_seq_lens, longest


def _flat(query: Tensor, key: Tensor, value: Tensor) -> Iterator[Tensor]:
    """(B, heads, T, head dim) -> (B * T, heads, head dim), in the dtype of the value.

    Under autocast head norms and rotation leave float32; the value comes straight out of its projection.
    """
    return (x.to(value.dtype).transpose(1, 2).flatten(0, 1) for x in (query, key, value))


def _window(sliding_window: int | None) -> tuple[int, int]:
    """Tokens seen to the left and to the right of the own one; -1 is no limit."""
    return (-1 if sliding_window is None else sliding_window - 1, 0)


@functools.cache
def _grouped(varlen_attn: Callable[..., Tensor]) -> dict[str, bool]:
    """torch 2.11 groups query heads unasked; later versions want to be told."""
    import inspect

    return {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
