"""Head norms, rotation and output gate of `heads.py` in Triton: each number is read once and written once.

Queries are read where their projection lies, between its gates, and the gradient of both is written as the projection
wants it: no part is cut out, laid out anew or put together again. Norm and rotation are computed in float32 and rounded
once; backward computes them again from the projection, which is all that is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sft_cli.kernels.counts import cdiv
from sft_cli.kernels.heads_triton_kernels import (
    elementwise_gate_backward,
    elementwise_gate_forward,
    rotated_rms_norm_backward,
    rotated_rms_norm_forward,
)
from sft_cli.kernels.norm_triton import MOST_PROGRAMS, in_rows, tile_of
from sft_cli.kernels.sums_triton import sum_of_programs


def rotated(
    x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float, offset: float, *, is_gated: bool = False
) -> tuple[Tensor, Tensor | None]:
    """As `heads.rotated`."""
    made = _Rotated.apply(x, weight, cos, sin, eps, offset, is_gated)
    return made if is_gated else (made, None)


def gated(x: Tensor, gate: Tensor) -> Tensor:
    """As `heads.gated`."""
    out: Tensor = _Gated.apply(x, gate)
    return out


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float, offset: float, is_gated: bool
    ) -> Any:
        rows, cos, sin = in_rows(x), cos.contiguous(), sin.contiguous()
        width = x.shape[-1] // 2 if is_gated else x.shape[-1]
        out = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device=x.device)
        ctx.save_for_backward(x if weight is not None else None, weight, cos, sin)
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.dtype, ctx.eps, ctx.offset, ctx.is_gated = x.shape, x.dtype, eps, offset, is_gated
        if out.numel():
            tile = tile_of(width)
            with torch.cuda.device_of(x):
                rotated_rms_norm_forward[(cdiv(rows.shape[0], tile.rows),)](
                    rows, rows if weight is None else weight, cos, sin, out,
                    rows.stride(0), x.shape[2], rows.shape[0], _tokens(cos), eps,
                    OFFSET=offset, NORMS=weight is not None, TURNED=cos.shape[-1],
                    WIDTH=width, ROWS=tile.rows, BLOCK=tile.width, num_warps=tile.warps,
                )  # fmt: skip
        return (out, x[..., width:]) if is_gated else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_out: Tensor | None, of_gate: Tensor | None = None) -> tuple[Tensor | None, ...]:
        x, weight, cos, sin = ctx.saved_tensors
        trains = weight is not None and ctx.needs_input_grad[1]
        of_x = torch.empty(ctx.shape, dtype=ctx.dtype, device=cos.device)
        width = ctx.shape[-1] // 2 if ctx.is_gated else ctx.shape[-1]
        if of_out is None:
            of_out = of_x.new_zeros(*ctx.shape[:-1], width)
        if of_gate is None and ctx.is_gated:
            of_gate = of_x.new_zeros(*ctx.shape[:-1], width)
        made, of_out = of_x.flatten(0, -2), of_out.contiguous()
        tile = tile_of(width)
        programs = min(cdiv(made.shape[0], tile.rows), MOST_PROGRAMS)
        partial = torch.empty(programs if trains else 0, width, dtype=torch.float32, device=cos.device)
        if programs:
            rows = made if x is None else in_rows(x)
            with torch.cuda.device_of(of_x):
                rotated_rms_norm_backward[(programs,)](
                    rows, made if weight is None else weight, cos, sin, of_out,
                    of_out if of_gate is None else of_gate.contiguous(), made, partial,
                    rows.stride(0), made.stride(0), ctx.shape[2], made.shape[0], _tokens(cos), ctx.eps,
                    OFFSET=ctx.offset, NORMS=weight is not None, GATES=ctx.is_gated, TRAINS=trains,
                    TURNED=cos.shape[-1], WIDTH=width, ROWS=tile.rows, BLOCK=tile.width, num_warps=tile.warps,
                )  # fmt: skip
        return of_x, sum_of_programs(partial, weight.dtype) if trains else None, None, None, None, None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, gate)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        _launch_gate(elementwise_gate_forward, x, gate, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_out: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, gate = ctx.saved_tensors
        of_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        of_gate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
        _launch_gate(elementwise_gate_backward, x, gate, of_out.contiguous(), of_x, of_gate)
        return of_x, of_gate


def _launch_gate(kernel: Any, x: Tensor, gate: Tensor, *others: Tensor) -> None:
    """`others` lie as a contiguous `x` does."""
    if not x.numel():
        return
    rows, tile = in_rows(gate), tile_of(x.shape[-1])
    with torch.cuda.device_of(x):
        kernel[(cdiv(rows.shape[0], tile.rows),)](
            x.contiguous(), rows, *others, rows.stride(0), rows.shape[0],
            WIDTH=x.shape[-1], ROWS=tile.rows, BLOCK=tile.width, num_warps=tile.warps,
        )  # fmt: skip


def _tokens(cos: Tensor) -> int:
    """How many have angles of their own: rows of a batch may share them."""
    return cos.shape[0] * cos.shape[1]
