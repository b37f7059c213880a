"""RMSNorm in two Triton kernels of our own, which take the residual stream's sums along.

A layer adds a branch's output to its stream and normalises the sum; backward adds the gradient that came through the
norm to that of the stream. Apart, each of those additions reads two tensors and writes a third. Here forward writes sum
and norm at once, and backward the sum of both gradients.

Numbers are computed in float32 and rounded where the modules of transformers round them; of the sum of gradients only
the result. What a row is divided by is computed again in backward: nothing is kept but the row. Sizes are fixed:
nothing is tuned, and another number of rows compiles nothing. The weight's gradient is summed in a fixed order.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sft_cli.kernels.counts import cdiv, next_power_of_2
from sft_cli.kernels.norm_triton_kernels import rms_norm_backward, rms_norm_forward
from sft_cli.kernels.sums_triton import sum_of_programs

NUMBERS = 1024
"""That a program has at once, where a row is not longer."""
NUMBERS_OF_A_WARP, MOST_WARPS = 256, 16
MOST_PROGRAMS = 512
"""Of a backward: each has sums of its own for the weight's gradient. Four for each multiprocessor of the largest GPUs,
so that some load while others compute."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """As `norm.rms_norm`."""
    out: Tensor = _Norm.apply(x, None, weight, eps, offset, False)[0]
    return out


def stream_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    """As `norm.stream_norm`."""
    if residual is not None and residual.dtype != x.dtype:
        dtype = torch.promote_types(residual.dtype, x.dtype)
        x, residual = x.to(dtype), residual.to(dtype)
    made: tuple[Tensor, Tensor] = _Norm.apply(x, residual, weight, eps, offset, True)
    return made


class _Norm(torch.autograd.Function):
    """(x, residual or None) -> norm; where the stream goes on, it and the norm."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, offset: float, goes_on: bool
    ) -> tuple[Tensor, ...]:
        rows, weight = in_rows(x), weight.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        stream = x if residual is None else torch.empty_like(out)
        count, width = rows.shape
        if x.numel():
            tile = tile_of(width)
            with torch.cuda.device_of(x):
                rms_norm_forward[(cdiv(count, tile.rows),)](
                    rows, rows if residual is None else residual.contiguous(), weight, stream, out,
                    rows.stride(0), count, eps,
                    OFFSET=offset, ADDS=residual is not None, WIDTH=width, ROWS=tile.rows, BLOCK=tile.width,
                    num_warps=tile.warps,
                )  # fmt: skip
        ctx.save_for_backward(stream, weight)
        ctx.set_materialize_grads(False)
        ctx.eps, ctx.offset, ctx.adds = eps, offset, residual is not None
        return (stream, out) if goes_on else (out,)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        of_stream, of_out = gradients if len(gradients) == 2 else (None, *gradients)
        if of_out is None:
            return of_stream, of_stream if ctx.adds else None, None, None, None, None
        x, weight = ctx.saved_tensors
        rows, trains = in_rows(x), ctx.needs_input_grad[2]
        count, width = rows.shape
        of_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        tile = tile_of(width)
        programs = min(cdiv(count, tile.rows), MOST_PROGRAMS)
        partial = torch.empty(programs if trains else 0, width, dtype=torch.float32, device=x.device)
        if programs:
            of_out = of_out.contiguous()
            with torch.cuda.device_of(x):
                rms_norm_backward[(programs,)](
                    rows, weight, of_out, of_out if of_stream is None else of_stream.contiguous(), of_x, partial,
                    rows.stride(0), count, ctx.eps,
                    OFFSET=ctx.offset, ADDS=of_stream is not None, TRAINS=trains,
                    WIDTH=width, ROWS=tile.rows, BLOCK=tile.width,
                    num_warps=tile.warps, maxnreg=tile.most_registers,
                )  # fmt: skip
        of_weight = sum_of_programs(partial, weight.dtype) if trains else None
        return of_x, of_x if ctx.adds else None, of_weight, None, None, None


class Tile:
    """What one program has at once, of rows of a width."""

    def __init__(self, width: int) -> None:
        self.width = next_power_of_2(width)
        self.rows = max(1, NUMBERS // self.width)
        self.warps = min(MOST_WARPS, max(1, self.rows * self.width // NUMBERS_OF_A_WARP))
        # So that a multiprocessor has room for a second program of that many: a thread spills 16 bytes in backward. Of
        # still longer rows it would spill most.
        self.most_registers: int | None = 64 if self.warps == MOST_WARPS and self.width <= 8192 else None


tile_of = cache(Tile)
"""Made once for each width: a step asks hundreds of times."""


def in_rows(x: Tensor) -> Tensor:
    """(..., width) -> (rows, width), evenly spaced: a copy where they lie in memory otherwise."""
    rows = x.flatten(0, -2) if x.ndim > 1 else x[None]
    return rows if rows.stride(1) == 1 else rows.contiguous()
