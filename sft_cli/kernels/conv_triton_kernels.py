"""The two kernels of `conv_triton.py`, which says how they are laid out."""

from __future__ import annotations

import triton
import triton.language as tl

WIDTH = 4
"""Taps."""
_WIDTH = tl.constexpr(WIDTH)


@triton.jit(do_not_specialize=["tokens", "length", "blocks"])
def causal_conv_forward(
    x_at,
    weight_at,
    bias_at,
    seq_idx_at,
    x_stride,
    channels,
    tokens,
    length,
    blocks,
    width_0,
    width_1,
    width_2,
    out_0_at,
    out_1_at,
    out_2_at,
    HAS_BIAS: tl.constexpr,
    IS_PACK: tl.constexpr,
    CHANNELS: tl.constexpr,
    STRETCH: tl.constexpr,
):
    """One program: `STRETCH` tokens of `CHANNELS` channels."""
    part, width, before, channel = _place(tl.program_id(0) % blocks, width_0, width_1, width_2, CHANNELS)
    out_at = out_0_at
    if part == 1:
        out_at = out_1_at
    elif part == 2:
        out_at = out_2_at
    first = tl.program_id(0) // blocks * STRETCH
    inside = channel < width
    w0, w1, w2, w3, bias = _taps(weight_at, bias_at, before + channel, inside, HAS_BIAS)
    x_at += first.to(tl.int64) * x_stride + before
    out_at += first.to(tl.int64) * width
    x_step, out_step = _wide(x_stride), _wide(width)

    x1, s1 = _read(x_at - x_step, seq_idx_at, first - 1, tokens, length, channel, inside, IS_PACK)
    x2, s2 = _read(x_at - 2 * x_step, seq_idx_at, first - 2, tokens, length, channel, inside, IS_PACK)
    x3, s3 = _read(x_at - 3 * x_step, seq_idx_at, first - 3, tokens, length, channel, inside, IS_PACK)
    for at in range(0, STRETCH, 4):
        # Four at a time, all loads first: a store in between would hold them up.
        n = first + at
        xa, sa = _read(x_at, seq_idx_at, n, tokens, length, channel, inside, IS_PACK)
        xb, sb = _read(x_at + x_step, seq_idx_at, n + 1, tokens, length, channel, inside, IS_PACK)
        xc, sc = _read(x_at + 2 * x_step, seq_idx_at, n + 2, tokens, length, channel, inside, IS_PACK)
        xd, sd = _read(x_at + 3 * x_step, seq_idx_at, n + 3, tokens, length, channel, inside, IS_PACK)
        a = _convolve(xa, x1, x2, x3, sa, s1, s2, s3, w0, w1, w2, w3, bias)
        b = _convolve(xb, xa, x1, x2, sb, sa, s1, s2, w0, w1, w2, w3, bias)
        c = _convolve(xc, xb, xa, x1, sc, sb, sa, s1, w0, w1, w2, w3, bias)
        d = _convolve(xd, xc, xb, xa, sd, sc, sb, sa, w0, w1, w2, w3, bias)
        kind = out_at.dtype.element_ty
        tl.store(out_at + channel, (a * _sigmoid(a)).to(kind), mask=inside & (n < tokens))
        tl.store(out_at + out_step + channel, (b * _sigmoid(b)).to(kind), mask=inside & (n + 1 < tokens))
        tl.store(out_at + 2 * out_step + channel, (c * _sigmoid(c)).to(kind), mask=inside & (n + 2 < tokens))
        tl.store(out_at + 3 * out_step + channel, (d * _sigmoid(d)).to(kind), mask=inside & (n + 3 < tokens))
        x1, x2, x3, s1, s2, s3 = xd, xc, xb, sd, sc, sb
        x_at += 4 * x_step
        out_at += 4 * out_step


@triton.jit(do_not_specialize=["tokens", "length", "blocks"])
def causal_conv_backward(
    x_at,
    weight_at,
    bias_at,
    seq_idx_at,
    x_stride,
    channels,
    tokens,
    length,
    blocks,
    width_0,
    width_1,
    width_2,
    of_0_at,
    of_1_at,
    of_2_at,
    stride_0,
    stride_1,
    stride_2,
    of_x_at,
    partial_at,
    HAS_BIAS: tl.constexpr,
    IS_PACK: tl.constexpr,
    TRAINS: tl.constexpr,
    CHANNELS: tl.constexpr,
    STRETCH: tl.constexpr,
):
    """As forward: each token adds to the gradients of itself and the three before it, the last of which is then whole.

    So a stretch goes on for three tokens into the next, whose part in the taps' gradients is left to that.
    """
    part, width, before, channel = _place(tl.program_id(0) % blocks, width_0, width_1, width_2, CHANNELS)
    of_at, of_stride = of_0_at, _wide(stride_0)
    if part == 1:
        of_at, of_stride = of_1_at, _wide(stride_1)
    elif part == 2:
        of_at, of_stride = of_2_at, _wide(stride_2)
    program = tl.program_id(0) // blocks
    first = program * STRETCH
    inside = channel < width
    w0, w1, w2, w3, bias = _taps(weight_at, bias_at, before + channel, inside, HAS_BIAS)
    x_at += first.to(tl.int64) * x_stride + before
    of_at += first.to(tl.int64) * of_stride
    of_x_at += first.to(tl.int64) * channels + before
    x_step, step = _wide(x_stride), _wide(channels)

    x1, s1 = _read(x_at - x_step, seq_idx_at, first - 1, tokens, length, channel, inside, IS_PACK)
    x2, s2 = _read(x_at - 2 * x_step, seq_idx_at, first - 2, tokens, length, channel, inside, IS_PACK)
    x3, s3 = _read(x_at - 3 * x_step, seq_idx_at, first - 3, tokens, length, channel, inside, IS_PACK)
    # Gradients of the last three inputs so far, and of taps and bias.
    g1 = tl.zeros([CHANNELS], dtype=tl.float32)
    g2, g3, t0, t1, t2, t3, t_bias = g1, g1, g1, g1, g1, g1, g1
    kind = of_x_at.dtype.element_ty
    for at in range(0, STRETCH, 4):
        n = first + at
        xa, sa = _read(x_at, seq_idx_at, n, tokens, length, channel, inside, IS_PACK)
        xb, sb = _read(x_at + x_step, seq_idx_at, n + 1, tokens, length, channel, inside, IS_PACK)
        xc, sc = _read(x_at + 2 * x_step, seq_idx_at, n + 2, tokens, length, channel, inside, IS_PACK)
        xd, sd = _read(x_at + 3 * x_step, seq_idx_at, n + 3, tokens, length, channel, inside, IS_PACK)
        ya = _read_gradient(of_at, n, tokens, channel, inside)
        yb = _read_gradient(of_at + of_stride, n + 1, tokens, channel, inside)
        yc = _read_gradient(of_at + 2 * of_stride, n + 2, tokens, channel, inside)
        yd = _read_gradient(of_at + 3 * of_stride, n + 3, tokens, channel, inside)
        ya, t0, t1, t2, t3, t_bias = _before_silu(
            ya, xa, x1, x2, x3, sa, s1, s2, s3, w0, w1, w2, w3, bias, t0, t1, t2, t3, t_bias
        )
        yb, t0, t1, t2, t3, t_bias = _before_silu(
            yb, xb, xa, x1, x2, sb, sa, s1, s2, w0, w1, w2, w3, bias, t0, t1, t2, t3, t_bias
        )
        yc, t0, t1, t2, t3, t_bias = _before_silu(
            yc, xc, xb, xa, x1, sc, sb, sa, s1, w0, w1, w2, w3, bias, t0, t1, t2, t3, t_bias
        )
        yd, t0, t1, t2, t3, t_bias = _before_silu(
            yd, xd, xc, xb, xa, sd, sc, sb, sa, w0, w1, w2, w3, bias, t0, t1, t2, t3, t_bias
        )
        g3 += _of_same(ya * w3, sa, s3)
        g2 += _of_same(ya * w2, sa, s2) + _of_same(yb * w3, sb, s2)
        g1 += _of_same(ya * w1, sa, s1) + _of_same(yb * w2, sb, s1) + _of_same(yc * w3, sc, s1)
        ga = ya * w0 + _of_same(yb * w1, sb, sa) + _of_same(yc * w2, sc, sa) + _of_same(yd * w3, sd, sa)
        is_own = at > 0  # the three before a stretch are the last stretch's
        tl.store(of_x_at - 3 * step + channel, g3.to(kind), mask=inside & is_own & (n - 3 < tokens))
        tl.store(of_x_at - 2 * step + channel, g2.to(kind), mask=inside & is_own & (n - 2 < tokens))
        tl.store(of_x_at - step + channel, g1.to(kind), mask=inside & is_own & (n - 1 < tokens))
        tl.store(of_x_at + channel, ga.to(kind), mask=inside & (n < tokens))
        g3 = yb * w0 + _of_same(yc * w1, sc, sb) + _of_same(yd * w2, sd, sb)
        g2 = yc * w0 + _of_same(yd * w1, sd, sc)
        g1 = yd * w0
        x1, x2, x3, s1, s2, s3 = xd, xc, xb, sd, sc, sb
        x_at += 4 * x_step
        of_at += 4 * of_stride
        of_x_at += 4 * step

    n = first + STRETCH
    xa, sa = _read(x_at, seq_idx_at, n, tokens, length, channel, inside, IS_PACK)
    xb, sb = _read(x_at + x_step, seq_idx_at, n + 1, tokens, length, channel, inside, IS_PACK)
    xc, sc = _read(x_at + 2 * x_step, seq_idx_at, n + 2, tokens, length, channel, inside, IS_PACK)
    ya = _read_gradient(of_at, n, tokens, channel, inside)
    yb = _read_gradient(of_at + of_stride, n + 1, tokens, channel, inside)
    yc = _read_gradient(of_at + 2 * of_stride, n + 2, tokens, channel, inside)
    ya = ya * _slope(_convolve(xa, x1, x2, x3, sa, s1, s2, s3, w0, w1, w2, w3, bias))
    yb = yb * _slope(_convolve(xb, xa, x1, x2, sb, sa, s1, s2, w0, w1, w2, w3, bias))
    yc = yc * _slope(_convolve(xc, xb, xa, x1, sc, sb, sa, s1, w0, w1, w2, w3, bias))
    g3 += _of_same(ya * w3, sa, s3)
    g2 += _of_same(ya * w2, sa, s2) + _of_same(yb * w3, sb, s2)
    g1 += _of_same(ya * w1, sa, s1) + _of_same(yb * w2, sb, s1) + _of_same(yc * w3, sc, s1)
    tl.store(of_x_at - 3 * step + channel, g3.to(kind), mask=inside & (n - 3 < tokens))
    tl.store(of_x_at - 2 * step + channel, g2.to(kind), mask=inside & (n - 2 < tokens))
    tl.store(of_x_at - step + channel, g1.to(kind), mask=inside & (n - 1 < tokens))

    if TRAINS:
        # (programs, taps and the bias, channels); the last tap meets the token itself.
        partial_at += program.to(tl.int64) * (_WIDTH + HAS_BIAS) * step + before + channel
        tl.store(partial_at, t3, mask=inside)
        tl.store(partial_at + step, t2, mask=inside)
        tl.store(partial_at + 2 * step, t1, mask=inside)
        tl.store(partial_at + 3 * step, t0, mask=inside)
        if HAS_BIAS:
            tl.store(partial_at + 4 * step, t_bias, mask=inside)


@triton.jit
def _place(block, width_0, width_1, width_2, CHANNELS: tl.constexpr):
    """Which part a block of channels is of, that part's width, the channels before it, and the block's place in it."""
    part, width, before = 0, _wide(width_0), _wide(0)
    blocks_0, blocks_1 = tl.cdiv(width_0, CHANNELS), tl.cdiv(width_1, CHANNELS)
    if block >= blocks_0 + blocks_1:
        part, width, before = 2, _wide(width_2), _wide(width_0) + width_1
        block -= blocks_0 + blocks_1
    elif block >= blocks_0:
        part, width, before = 1, _wide(width_1), _wide(width_0)
        block -= blocks_0
    return part, width, before, block * CHANNELS + tl.arange(0, CHANNELS)


@triton.jit
def _taps(weight_at, bias_at, channel, inside, HAS_BIAS: tl.constexpr):
    """By how far back each looks, and the bias; float32."""
    weight_at += channel * _WIDTH
    w0 = tl.load(weight_at + 3, mask=inside, other=0.0).to(tl.float32)
    w1 = tl.load(weight_at + 2, mask=inside, other=0.0).to(tl.float32)
    w2 = tl.load(weight_at + 1, mask=inside, other=0.0).to(tl.float32)
    w3 = tl.load(weight_at, mask=inside, other=0.0).to(tl.float32)
    bias = tl.zeros_like(w0)
    if HAS_BIAS:
        bias = tl.load(bias_at + channel, mask=inside, other=0.0).to(tl.float32)
    return w0, w1, w2, w3, bias


@triton.jit
def _read(x_at, seq_idx_at, n, tokens, length, channel, inside, IS_PACK: tl.constexpr):
    """Token `n` and its segment; 0 for one that is not there."""
    is_there = (n >= 0) & (n < tokens)
    x = tl.load(x_at + channel, mask=inside & is_there, other=0.0).to(tl.float32)
    segment = tl.load(seq_idx_at + n, mask=is_there, other=-1) if IS_PACK else n // length
    return x, segment


@triton.jit
def _read_gradient(of_at, n, tokens, channel, inside):
    return tl.load(of_at + channel, mask=inside & (n < tokens), other=0.0).to(tl.float32)


@triton.jit
def _convolve(x, x1, x2, x3, s, s1, s2, s3, w0, w1, w2, w3, bias):
    """Before SiLU."""
    out = bias + x * w0 + _of_same(x1, s, s1) * w1
    return out + _of_same(x2, s, s2) * w2 + _of_same(x3, s, s3) * w3


@triton.jit
def _before_silu(y, x, x1, x2, x3, s, s1, s2, s3, w0, w1, w2, w3, bias, t0, t1, t2, t3, t_bias):
    """The gradient `y` of a token's output on the other side of SiLU; and those of taps and bias with its share."""
    x1, x2, x3 = _of_same(x1, s, s1), _of_same(x2, s, s2), _of_same(x3, s, s3)
    y *= _slope(bias + x * w0 + x1 * w1 + x2 * w2 + x3 * w3)
    return y, t0 + y * x, t1 + y * x1, t2 + y * x2, t3 + y * x3, t_bias + y


@triton.jit
def _of_same(value, segment, other):
    """0 between two segments."""
    return tl.where(segment == other, value, 0.0)


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _slope(x):
    """Of SiLU."""
    share = _sigmoid(x)
    return share * (1 + x * (1 - share))


@triton.jit
def _wide(value):
    """int64: tokens times channels may pass 2^31."""
    return tl.cast(value, tl.int64)
