"""The kernels of `heads_triton.py`: a program has `ROWS` heads of some tokens in its registers."""

from __future__ import annotations

import triton
import triton.language as tl

from sft_cli.kernels.norm_triton_kernels import inverse_size, places, through_norm


@triton.jit(do_not_specialize=["rows", "tokens", "eps"])
def rotated_rms_norm_forward(
    x_at,
    weight_at,
    cos_at,
    sin_at,
    out_at,
    x_stride,
    heads,
    rows,
    tokens,
    eps,
    OFFSET: tl.constexpr,
    NORMS: tl.constexpr,
    TURNED: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Head by head: normalised, then the halves of its first `TURNED` numbers rotated against each other."""
    row, column, inside = places(tl.program_id(0) * ROWS, rows, WIDTH, ROWS, BLOCK)
    is_turned, other, sign = _halves(column, TURNED)
    angle = row // heads % tokens * TURNED
    cos = tl.load(cos_at + angle + column, mask=inside & is_turned, other=1.0).to(tl.float32)
    sin = tl.load(sin_at + angle + column, mask=inside & is_turned, other=0.0).to(tl.float32)
    x_at += row * x_stride
    x = tl.load(x_at + column, mask=inside, other=0.0).to(tl.float32)
    turned = tl.load(x_at + other, mask=inside & is_turned, other=0.0).to(tl.float32)
    if NORMS:
        inverse = inverse_size(x, eps, WIDTH)
        x *= inverse * (OFFSET + tl.load(weight_at + column, mask=column < WIDTH, other=0.0).to(tl.float32))
        turned *= inverse * (OFFSET + tl.load(weight_at + other, mask=is_turned, other=0.0).to(tl.float32))
    out = x * cos - sign * turned * sin
    tl.store(out_at + row * WIDTH + column, out.to(out_at.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "tokens", "eps"])
def rotated_rms_norm_backward(
    x_at,
    weight_at,
    cos_at,
    sin_at,
    of_out_at,
    of_gate_at,
    of_x_at,
    partial_at,
    x_stride,
    of_x_stride,
    heads,
    rows,
    tokens,
    eps,
    OFFSET: tl.constexpr,
    NORMS: tl.constexpr,
    GATES: tl.constexpr,
    TRAINS: tl.constexpr,
    TURNED: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """With `GATES` the gradient of what lies behind each head is written behind that of the head. One program: every
    n-th `ROWS` heads, and the sums of the weight's gradient over them."""
    of_weight = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    first = tl.program_id(0) * ROWS
    while first < rows:
        row, column, inside = places(first, rows, WIDTH, ROWS, BLOCK)
        is_turned, other, sign = _halves(column, TURNED)
        angle = row // heads % tokens * TURNED
        cos = tl.load(cos_at + angle + column, mask=inside & is_turned, other=1.0).to(tl.float32)
        sin = tl.load(sin_at + angle + other, mask=inside & is_turned, other=0.0).to(tl.float32)
        gradient = tl.load(of_out_at + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        turned = tl.load(of_out_at + row * WIDTH + other, mask=inside & is_turned, other=0.0).to(tl.float32)
        gradient = gradient * cos + sign * turned * sin
        if NORMS:
            x = tl.load(x_at + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
            weight = tl.load(weight_at + column, mask=column < WIDTH, other=0.0).to(tl.float32)
            gradient, of_weights = through_norm(x, gradient, OFFSET + weight, eps, WIDTH)
            of_weight += of_weights
        kind = of_x_at.dtype.element_ty
        tl.store(of_x_at + row * of_x_stride + column, gradient.to(kind), mask=inside)
        if GATES:
            of_gate = tl.load(of_gate_at + row * WIDTH + column, mask=inside, other=0.0)
            tl.store(of_x_at + row * of_x_stride + WIDTH + column, of_gate.to(kind), mask=inside)
        first += tl.num_programs(0) * ROWS
    if TRAINS:
        columns = tl.arange(0, BLOCK)
        tl.store(partial_at + tl.program_id(0) * WIDTH + columns, tl.sum(of_weight, axis=0), mask=columns < WIDTH)


@triton.jit(do_not_specialize=["rows"])
def elementwise_gate_forward(
    x_at, gate_at, out_at, gate_stride, rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """x * sigmoid(gate)."""
    row, column, inside = places(tl.program_id(0) * ROWS, rows, WIDTH, ROWS, BLOCK)
    x = tl.load(x_at + row * WIDTH + column, mask=inside, other=0.0)
    gate = tl.load(gate_at + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    out = x.to(tl.float32) / (1.0 + tl.exp(-gate))
    tl.store(out_at + row * WIDTH + column, out.to(x.dtype), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def elementwise_gate_backward(
    x_at,
    gate_at,
    of_out_at,
    of_x_at,
    of_gate_at,
    gate_stride,
    rows,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Of both."""
    row, column, inside = places(tl.program_id(0) * ROWS, rows, WIDTH, ROWS, BLOCK)
    place = row * WIDTH + column
    x = tl.load(x_at + place, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_at + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(of_out_at + place, mask=inside, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-gate))
    tl.store(of_x_at + place, (gradient * share).to(of_x_at.dtype.element_ty), mask=inside)
    of_gate = gradient * x * share * (1.0 - share)
    tl.store(of_gate_at + place, of_gate.to(of_gate_at.dtype.element_ty), mask=inside)


@triton.jit
def _halves(column, TURNED: tl.constexpr):
    """Of the numbers that are rotated: which they are, their partners' places, and 1 in the first half, -1 in the
    second."""
    is_first = column < TURNED // 2
    other = tl.where(is_first, column + TURNED // 2, column - TURNED // 2)
    return column < TURNED, other, tl.where(is_first, 1.0, -1.0)
