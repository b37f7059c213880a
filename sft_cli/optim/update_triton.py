"""The update of `update.py` as one kernel: every number is read once and written once, and there are no temporaries.

Composed of torch's operations it would read and write about 25 float32 tensors: seconds a step for 27B parameters. With
8-bit moments it moves 10 bytes a number, and a GPU has time for some 70 instructions meanwhile, half as many of them on
integers: what is the same for a block or a program is computed once, and nothing is divided.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from sft_cli.optim.eight_bit import LARGEST_BLOCK, ROOT, ROOT_SPARE, ROOT_SPARE_HALF, SIGNED, TINY
from sft_cli.optim.update import Slice

NUMBERS_OF_A_PROGRAM, WARPS = 2048, 4
"""Small, so that some programs of a multiprocessor compute while others load; 16 neighbours a thread."""

_TINY = tl.constexpr(TINY)
_SIGNED_SHIFT, _SIGNED_OFFSET = tl.constexpr(SIGNED.shift), tl.constexpr(SIGNED.offset << SIGNED.shift)
_SIGNED_HALF, _ROOT_SPARE = tl.constexpr(SIGNED.half), tl.constexpr(ROOT_SPARE)
_ROOT_SHIFT, _ROOT_OFFSET = tl.constexpr(ROOT.shift), tl.constexpr(ROOT.offset << ROOT.shift)
_ROOT_SPARE_HALF = tl.constexpr(ROOT_SPARE_HALF)


def programs(count: int) -> int:
    """How many make the update of a tensor of `count` numbers."""
    return -(-count // NUMBERS_OF_A_PROGRAM)


def update_on_device(work: Slice, squares: Tensor | None = None) -> None:
    """As `update_on_host`; the host does not wait.

    Args:
        squares: float32 (programs,), written: each program's sum of the squares of its gradient. With it, blocks whose
            gradient is not finite stay as they were; a bad step's sums are 0.
    """
    count = work.weights.numel()
    if count == 0:
        work.next_step.copy_(work.step + 1 - work.is_bad)
        return
    with torch.cuda.device_of(work.weights):
        _update[(programs(count),)](
            *tensors(work),
            work.is_bad,
            work.step if squares is None else squares,
            count,
            work.first,
            work.key,
            *rates(work),
            **constants(work, sums_squares=squares is not None),
        )


def tensors(work: Slice) -> tuple[Tensor, ...]:
    """What an update reads and writes of one tensor, in the order in which the kernels take it."""
    scales = work.scales or work.moments  # no scale is read of float32 moments
    return (work.weights, work.gradient, *work.moments, *scales, work.step, work.next_step)


def rates(work: Slice) -> tuple[float, ...]:
    """From `learning_rate` to `eps`, as the kernels take them."""
    logarithms = (math.log2(beta) if beta else -math.inf for beta in work.betas)
    return (work.learning_rate, 1 - work.learning_rate * work.weight_decay, *work.betas, *logarithms, work.eps)


def constants(work: Slice, *, sums_squares: bool) -> dict[str, int]:
    """What the kernels are compiled for."""
    block = work.block or LARGEST_BLOCK
    return {
        "EIGHT_BIT": work.scales is not None,
        "STOCHASTIC": work.stochastic_rounding,
        "SQUARES": sums_squares,
        "BLOCK": block,
        "ROWS": NUMBERS_OF_A_PROGRAM // block,
        "num_warps": WARPS,
    }


@triton.jit(
    do_not_specialize=["first", "key", "learning_rate", "kept", "beta1", "beta2", "log_beta1", "log_beta2", "eps"],
    # Single numbers, some of them out of the middle of a tensor: a variant for each place gains nothing, and a
    # rehearsal, whose flag is another than a step's, would not have compiled the step's.
    do_not_specialize_on_alignment=["step_at", "next_step_at", "is_bad_at", "squares_at"],
)
def _update(
    weights_at,
    gradient_at,
    first_at,
    second_at,
    first_scale_at,
    second_scale_at,
    step_at,
    next_step_at,
    is_bad_at,
    squares_at,
    count,
    first,
    key,
    learning_rate,
    kept,
    beta1,
    beta2,
    log_beta1,
    log_beta2,
    eps,
    EIGHT_BIT: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    SQUARES: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    part = tl.program_id(0)
    update_part(
        weights_at,
        gradient_at,
        first_at,
        second_at,
        first_scale_at,
        second_scale_at,
        step_at,
        next_step_at,
        is_bad_at,
        squares_at + part,
        part,
        count,
        first,
        key,
        learning_rate,
        kept,
        beta1,
        beta2,
        log_beta1,
        log_beta2,
        eps,
        EIGHT_BIT,
        STOCHASTIC,
        SQUARES,
        BLOCK,
        ROWS,
    )


@triton.jit
def update_part(
    weights_at,
    gradient_at,
    first_at,
    second_at,
    first_scale_at,
    second_scale_at,
    step_at,
    next_step_at,
    is_bad_at,
    square_at,
    part,
    count,
    first,
    key,
    learning_rate,
    kept,
    beta1,
    beta2,
    log_beta1,
    log_beta2,
    eps,
    EIGHT_BIT: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    SQUARES: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Of one tensor: `part` of `ROWS` blocks of `BLOCK` numbers. Logarithms are to base 2; `kept` is what decay
    leaves."""
    is_bad = tl.load(is_bad_at) != 0.0
    step = tl.load(step_at)
    if part == 0:
        tl.store(next_step_at, tl.where(is_bad, step, step + 1))
    step += 1
    begin = part.to(tl.int64) * (ROWS * BLOCK)
    left = tl.where(is_bad, 0, count) - begin
    rows = tl.arange(0, ROWS)[:, None]
    places = rows * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = places < left
    block_mask = rows * BLOCK < left
    weights_at += begin
    gradient_at += begin
    first_at += begin
    second_at += begin

    gradient = tl.load(gradient_at + places, mask=mask, other=0.0).to(tl.float32)
    weights = tl.load(weights_at + places, mask=mask, other=0.0).to(tl.float32)
    if EIGHT_BIT:
        first_scale_at += part * ROWS
        second_scale_at += part * ROWS
        codes = tl.load(first_at + places, mask=mask, other=0).to(tl.int32) << _SIGNED_SHIFT
        scale = tl.load(first_scale_at + rows, mask=block_mask, other=0.0)
        bits = tl.abs(codes) + _SIGNED_OFFSET | codes & -0x80000000
        moment = tl.where(codes == 0, 0.0, bits.to(tl.float32, bitcast=True)) * scale
        codes = tl.load(second_at + places, mask=mask, other=0).to(tl.int32) << _ROOT_SHIFT
        scale = tl.load(second_scale_at + rows, mask=block_mask, other=0.0)
        root = tl.where(codes == 0, 0.0, (codes + _ROOT_OFFSET).to(tl.float32, bitcast=True)) * scale
        square = root * root
    else:
        moment = tl.load(first_at + places, mask=mask, other=0.0)
        square = tl.load(second_at + places, mask=mask, other=0.0)

    moment += (1 - beta1) * (gradient - moment)
    square = beta2 * square + (1 - beta2) * gradient * gradient
    root = tl.sqrt(square)
    correction = tl.sqrt(1 - tl.exp2(step * log_beta2))
    step_size = learning_rate * correction / (1 - tl.exp2(step * log_beta1))
    # A reciprocal is the square of a reciprocal root here: a division would look at how large both numbers are.
    by_root = tl.rsqrt(root + eps * correction)
    weights = weights * kept - moment * step_size * (by_root * by_root)

    if SQUARES:  # Not before all loads are on their way: nothing that is read depends on it.
        squares = tl.sum(gradient * gradient, axis=1, keep_dims=True)
        tl.store(square_at, tl.sum(squares))
        block_mask = block_mask & (squares < float("inf"))
        mask = mask & block_mask
    if STOCHASTIC or EIGHT_BIT:
        random = _random_bits(key, step, first + begin, places)
    if STOCHASTIC:
        bits = weights.to(tl.int32, bitcast=True) + (random & 0xFFFF)
        tl.store(weights_at + places, (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True), mask=mask)
    else:
        tl.store(weights_at + places, weights.to(weights_at.dtype.element_ty), mask=mask)
    if EIGHT_BIT:
        # A product with a reciprocal may be a bit above 1: either way of rounding still makes the largest code of it.
        scale = tl.max(tl.abs(moment), axis=1, keep_dims=True)
        ratios = (tl.abs(moment) * (1.0 / tl.maximum(scale, _TINY))).to(tl.int32, bitcast=True)
        codes = ratios + (_SIGNED_HALF - _SIGNED_OFFSET) >> _SIGNED_SHIFT
        codes = tl.maximum(codes, 0)
        tl.store(first_at + places, tl.where(moment < 0, -codes, codes).to(tl.int8), mask=mask)
        tl.store(first_scale_at + rows, scale, mask=block_mask)
        scale = tl.max(root, axis=1, keep_dims=True)
        ratios = (root * (1.0 / tl.maximum(scale, _TINY))).to(tl.int32, bitcast=True)
        by_chance = (random >> 16 & 0xFFFF) << _ROOT_SPARE
        codes = ratios + by_chance + (_ROOT_SPARE_HALF - _ROOT_OFFSET) >> _ROOT_SHIFT
        at_least = tl.minimum(root.to(tl.int32, bitcast=True), 1)  # 1 where the root is not 0
        tl.store(second_at + places, tl.maximum(codes, at_least).to(tl.uint8), mask=mask)
        tl.store(second_scale_at + rows, scale, mask=block_mask)
    else:
        tl.store(first_at + places, moment, mask=mask)
        tl.store(second_at + places, square, mask=mask)


@triton.jit
def _random_bits(key, step, begin, places):
    """See `rounding.random_bits`, of places from `begin` on; 32 bits without a sign."""
    of_step = _scramble(key.to(tl.uint32) + step.to(tl.uint32))
    return _scramble(begin.to(tl.uint32) + places.to(tl.uint32) ^ of_step).to(tl.int32, bitcast=True)


@triton.jit
def _scramble(bits):
    """See `rounding.scramble`."""
    bits ^= bits >> 16
    bits *= 0x7FEB352D
    bits ^= bits >> 15
    bits *= 0x846CA68B
    return bits ^ (bits >> 16)
