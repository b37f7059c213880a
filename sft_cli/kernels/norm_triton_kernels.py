"""The kernels of `norm_triton.py`: a program has `ROWS` whole rows in its registers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "eps"])
def rms_norm_forward(
    x_at,
    residual_at,
    weight_at,
    sum_at,
    out_at,
    x_stride,
    rows,
    eps,
    OFFSET: tl.constexpr,
    ADDS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """With `ADDS` the norm of the sum of two tensors, which is written, too."""
    row, column, inside = places(tl.program_id(0) * ROWS, rows, WIDTH, ROWS, BLOCK)
    x = tl.load(x_at + row * x_stride + column, mask=inside, other=0.0)
    if ADDS:
        residual = tl.load(residual_at + row * WIDTH + column, mask=inside, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)
        tl.store(sum_at + row * WIDTH + column, x, mask=inside)
    weight = tl.load(weight_at + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    wide = x.to(tl.float32)
    normed = wide * inverse_size(wide, eps, WIDTH)
    if OFFSET == 0:  # rounded before the product, as in Llama's module
        normed = normed.to(x.dtype).to(tl.float32)
    tl.store(out_at + row * WIDTH + column, (normed * (OFFSET + weight)).to(x.dtype), mask=inside)


@triton.jit(do_not_specialize=["rows", "eps"])
def rms_norm_backward(
    x_at,
    weight_at,
    of_out_at,
    of_sum_at,
    of_x_at,
    partial_at,
    x_stride,
    rows,
    eps,
    OFFSET: tl.constexpr,
    ADDS: tl.constexpr,
    TRAINS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`x` is what was normalised; with `ADDS` it has a gradient of its own besides. One program: every
    n-th `ROWS` rows, and the sums of the weight's gradient over them."""
    of_weight = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    first = tl.program_id(0) * ROWS
    while first < rows:
        row, column, inside = places(first, rows, WIDTH, ROWS, BLOCK)
        x = tl.load(x_at + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.load(of_out_at + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weight_at + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        of_x, of_weights = through_norm(x, gradient, OFFSET + weight, eps, WIDTH)
        of_weight += of_weights
        if ADDS:
            of_x += tl.load(of_sum_at + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(of_x_at + row * WIDTH + column, of_x.to(of_x_at.dtype.element_ty), mask=inside)
        first += tl.num_programs(0) * ROWS
    if TRAINS:
        column = tl.arange(0, BLOCK)
        sums = tl.sum(of_weight, axis=0)
        tl.store(partial_at + tl.program_id(0) * WIDTH + column, sums, mask=column < WIDTH)


@triton.jit
def places(first, rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows from `first` on as int64 (ROWS, 1), columns (1, BLOCK), and which places exist."""
    row = first + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    return row.to(tl.int64), column, (row < rows) & (column < WIDTH)


@triton.jit
def inverse_size(x, eps, WIDTH: tl.constexpr):
    """Of each row."""
    return tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / WIDTH + eps)


@triton.jit
def through_norm(x, gradient, scale, eps, WIDTH: tl.constexpr):
    """Of rows that were normalised and multiplied by `scale`: their gradient, and the terms of that of `scale`."""
    inverse = inverse_size(x, eps, WIDTH)
    normed = x * inverse
    scaled = gradient * scale
    along = tl.sum(scaled * normed, axis=1, keep_dims=True) / WIDTH
    return inverse * (scaled - normed * along), gradient * normed
