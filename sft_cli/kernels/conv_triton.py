"""The convolution of `conv.py` in two Triton kernels of our own: each number is read once and written once.

It reads the projection's output as it lies in memory and writes queries, keys and values each by itself, as the delta
rule wants them; backward reads their gradients where they lie. Slices of one tensor would be copied on both ways.

All tokens of a micro-batch are one line of B * T tokens; padded rows are told apart as segments are. A program walks
along `STRETCH` tokens with the last three inputs in registers, so that nothing is computed twice but at its ends.
Sizes are fixed and no length is specialised: nothing is tuned, and nothing compiled anew for another micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sft_cli.kernels.conv_triton_kernels import WIDTH, causal_conv_backward, causal_conv_forward
from sft_cli.kernels.counts import cdiv
from sft_cli.kernels.segments import Segments
from sft_cli.kernels.sums_triton import sum_of_programs

MOST_PARTS = 3
CHANNELS, WARPS = 128, 1
"""Of a program: 4 neighbours a thread, which are loaded at once."""
STRETCH = 64
"""Tokens of a program, a multiple of 4."""


@overload
def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None, segments: Segments | None) -> Tensor: ...
@overload
def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, segments: Segments | None, widths: Sequence[int]
) -> tuple[Tensor, ...]: ...
def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    segments: Segments | None,
    widths: Sequence[int] | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """As `reference.causal_conv`, computed in float32.

    Args:
        widths: of up to three parts that the channels are split in; None for one tensor.

    Returns:
        Contiguous (B, T, channels); with `widths`, one such tensor for each of them.

    Raises:
        ValueError: not four taps, or parts that are not all of the channels.
    """
    channels = x.shape[-1]
    parts = (channels,) if widths is None else tuple(widths)
    if weight.shape != (channels, WIDTH):
        raise ValueError(f"weight: {tuple(weight.shape)}, and there are kernels for ({channels}, {WIDTH})")
    if not 1 <= len(parts) <= MOST_PARTS or sum(parts) != channels:
        raise ValueError(f"widths: {parts} of {channels} channels, and there are kernels for 1 to {MOST_PARTS} parts")
    outs: tuple[Tensor, ...] = _Conv.apply(x, weight, bias, None if segments is None else segments.seq_idx, parts)
    return outs[0] if widths is None else outs


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None, parts: tuple[int, ...]
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight, bias, seq_idx)
        ctx.parts = parts
        outs = tuple(torch.empty(*x.shape[:2], part, dtype=x.dtype, device=x.device) for part in parts)
        _launch(causal_conv_forward, x, weight, bias, seq_idx, parts, outs)
        return outs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, seq_idx = ctx.saved_tensors
        of_parts = tuple(_in_line(gradient) for gradient in gradients)
        strides = _padded(tuple(gradient.stride(0) for gradient in of_parts), 0)
        of_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        trains = any(ctx.needs_input_grad[1:3])
        # Each program's sums over its tokens are added up afterwards: in the same order each time, unlike atomics.
        sums = (_programs(x) if trains else 0, WIDTH + (bias is not None), x.shape[-1])
        partial = torch.empty(sums, dtype=torch.float32, device=x.device)
        _launch(
            causal_conv_backward, x, weight, bias, seq_idx, ctx.parts, of_parts, *strides, of_x, partial, TRAINS=trains
        )
        if not trains:
            return of_x, None, None, None, None
        summed = sum_of_programs(partial, weight.dtype)
        return of_x, summed[:, :WIDTH], None if bias is None else summed[:, WIDTH].to(bias), None, None


def _launch(
    kernel: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seq_idx: Tensor | None,
    parts: tuple[int, ...],
    of_parts: tuple[Tensor, ...],
    *more: Any,
    **options: bool,
) -> None:
    """One kernel over all tokens and channels; tensors that are not there are never reached."""
    if x.numel() == 0:
        return
    line, weight = _in_line(x), weight.contiguous()
    blocks = sum(cdiv(part, CHANNELS) for part in parts)  # side by side; none works on two parts
    with torch.cuda.device_of(x):
        kernel[(_programs(x) * blocks,)](
            line, weight, weight if bias is None else bias, weight if seq_idx is None else seq_idx,
            line.stride(0), line.shape[1], line.shape[0], x.shape[1], blocks,
            *_padded(parts, 0), *_padded(of_parts, of_parts[0]), *more,
            HAS_BIAS=bias is not None, IS_PACK=seq_idx is not None, **options,
            CHANNELS=CHANNELS, STRETCH=STRETCH, num_warps=WARPS,
        )  # fmt: skip


def _in_line(x: Tensor) -> Tensor:
    """(B, T, channels) -> (B * T, channels), evenly spaced: a copy where it lies in memory otherwise."""
    line = x.flatten(0, 1)
    return line if line.stride(1) == 1 else line.contiguous()


def _programs(x: Tensor) -> int:
    """Behind each other along the tokens."""
    return cdiv(x.shape[0] * x.shape[1], STRETCH)


def _padded(values: tuple[Any, ...], filler: Any) -> tuple[Any, ...]:
    return values + (filler,) * (MOST_PARTS - len(values))
