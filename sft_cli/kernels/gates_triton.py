"""Decay and beta of a Gated DeltaNet block in two Triton kernels, where torch has about a dozen each way.

They are small: a number for each token and head. What they cost is launches.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from sft_cli.kernels.counts import cdiv, next_power_of_2
from sft_cli.kernels.sums_triton import sum_of_programs

NUMBERS, WARPS = 1024, 4
"""That a program has at once."""
MOST_PROGRAMS = 256
"""Of a backward: each has sums of its own."""


def gates(a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """As `linear_attention.gates`."""
    made: tuple[Tensor, Tensor] = _Gates.apply(a, b, a_log, dt_bias)
    return made


class _Gates(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        a, b, a_log, dt_bias = (x.contiguous() for x in (a, b, a_log, dt_bias))
        ctx.save_for_backward(a, b, a_log, dt_bias)
        log_decay = torch.empty(a.shape, dtype=torch.float32, device=a.device)
        beta = torch.empty_like(b)
        tokens, heads = a.shape
        block, rows = _tile(heads)
        if a.numel():
            with torch.cuda.device_of(a):
                elementwise_decay_forward[(cdiv(tokens, rows),)](
                    a, b, a_log, dt_bias, log_decay, beta, tokens,
                    HEADS=heads, ROWS=rows, BLOCK=block, num_warps=WARPS,
                )  # fmt: skip
        return log_decay, beta

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_log_decay: Tensor, of_beta: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        a, b, a_log, dt_bias = ctx.saved_tensors
        tokens, heads = a.shape
        block, rows = _tile(heads)
        of_a, of_b = torch.empty_like(a), torch.empty_like(b)
        programs = min(cdiv(tokens, rows), MOST_PROGRAMS)
        partial = torch.empty(programs, 2 * heads, dtype=torch.float32, device=a.device)
        if programs:
            with torch.cuda.device_of(a):
                elementwise_decay_backward[(programs,)](
                    a, b, a_log, dt_bias, of_log_decay.contiguous(), of_beta.contiguous(), of_a, of_b, partial, tokens,
                    HEADS=heads, ROWS=rows, BLOCK=block, num_warps=WARPS,
                )  # fmt: skip
        of_a_log, of_dt_bias = sum_of_programs(partial, torch.float32).chunk(2)
        return of_a, of_b, of_a_log.to(a_log.dtype), of_dt_bias.to(dt_bias.dtype)


def _tile(heads: int) -> tuple[int, int]:
    """Heads of a program, and its tokens."""
    block = next_power_of_2(heads)
    return block, max(1, NUMBERS // block)


@triton.jit(do_not_specialize=["tokens"])
def elementwise_decay_forward(
    a_at,
    b_at,
    a_log_at,
    dt_bias_at,
    log_decay_at,
    beta_at,
    tokens,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: `ROWS` tokens."""
    head = tl.arange(0, BLOCK)[None, :]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    place, inside = row.to(tl.int64) * HEADS + head, (row < tokens) & (head < HEADS)
    rate = tl.exp(tl.load(a_log_at + head, mask=head < HEADS, other=0.0).to(tl.float32))
    bias = tl.load(dt_bias_at + head, mask=head < HEADS, other=0.0).to(tl.float32)
    a = tl.load(a_at + place, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_at + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(log_decay_at + place, -rate * _softplus(a + bias), mask=inside)
    tl.store(beta_at + place, (1.0 / (1.0 + tl.exp(-b))).to(beta_at.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def elementwise_decay_backward(
    a_at,
    b_at,
    a_log_at,
    dt_bias_at,
    of_log_decay_at,
    of_beta_at,
    of_a_at,
    of_b_at,
    partial_at,
    tokens,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: every n-th `ROWS` tokens, and its sums of the gradients of `a_log` and `dt_bias`."""
    head = tl.arange(0, BLOCK)[None, :]
    rate = tl.exp(tl.load(a_log_at + head, mask=head < HEADS, other=0.0).to(tl.float32))
    bias = tl.load(dt_bias_at + head, mask=head < HEADS, other=0.0).to(tl.float32)
    of_a_log = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    of_dt_bias = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    first = tl.program_id(0) * ROWS
    while first < tokens:
        row = first + tl.arange(0, ROWS)[:, None]
        place, inside = row.to(tl.int64) * HEADS + head, (row < tokens) & (head < HEADS)
        step = tl.load(a_at + place, mask=inside, other=0.0).to(tl.float32) + bias
        b = tl.load(b_at + place, mask=inside, other=0.0).to(tl.float32)
        gradient = -rate * tl.load(of_log_decay_at + place, mask=inside, other=0.0).to(tl.float32)
        of_beta = tl.load(of_beta_at + place, mask=inside, other=0.0).to(tl.float32)
        of_step = gradient / (1.0 + tl.exp(-step))
        of_a_log += gradient * _softplus(step)
        of_dt_bias += of_step
        tl.store(of_a_at + place, of_step.to(of_a_at.dtype.element_ty), mask=inside)
        share = 1.0 / (1.0 + tl.exp(-b))
        tl.store(of_b_at + place, (of_beta * share * (1.0 - share)).to(of_b_at.dtype.element_ty), mask=inside)
        first += tl.num_programs(0) * ROWS
    partial_at += tl.program_id(0) * 2 * HEADS
    heads = tl.arange(0, BLOCK)
    tl.store(partial_at + heads, tl.sum(of_a_log, axis=0), mask=heads < HEADS)
    tl.store(partial_at + HEADS + heads, tl.sum(of_dt_bias, axis=0), mask=heads < HEADS)


@triton.jit
def _softplus(x):
    """log(1 + exp(x)). Rounding 1 + exp(-|x|) loses the digits of a small exponential, which the ratio gives back."""
    small = tl.exp(-tl.abs(x))
    more = 1.0 + small
    lost = tl.where(more == 1.0, small, tl.log(more) * (small / tl.where(more == 1.0, 1.0, more - 1.0)))
    return tl.maximum(x, 0.0) + lost
