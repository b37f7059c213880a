"""The update of `update.py` as one kernel: every number is read once and written once, and there are no temporaries.

Composed of torch's operations it would read and write about 25 float32 tensors: seconds a step for 27B parameters.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sft_cli.optim.eight_bit import LARGEST_BLOCK, ROOT, ROOT_SPARE, SIGNED, TINY
from sft_cli.optim.update import Slice

NUMBERS_OF_A_PROGRAM = 4096

_TINY = tl.constexpr(TINY)
_SIGNED_SHIFT, _SIGNED_OFFSET = tl.constexpr(SIGNED.shift), tl.constexpr(SIGNED.offset)
_SIGNED_LARGEST, _SIGNED_HALF = tl.constexpr(SIGNED.largest), tl.constexpr(SIGNED.half)
_ROOT_SHIFT, _ROOT_OFFSET = tl.constexpr(ROOT.shift), tl.constexpr(ROOT.offset)
_ROOT_LARGEST, _ROOT_SPARE = tl.constexpr(ROOT.largest), tl.constexpr(ROOT_SPARE)


def update_on_device(work: Slice) -> None:
    """As `update_on_host`; the host does not wait."""
    count = work.weights.numel()
    if count == 0:
        return
    block = work.block or LARGEST_BLOCK
    scales: tuple[Tensor, ...] = work.scales or work.moments  # no scale is read of float32 moments
    rows = NUMBERS_OF_A_PROGRAM // block
    with torch.cuda.device_of(work.weights):
        _update[(triton.cdiv(count, NUMBERS_OF_A_PROGRAM),)](
            work.weights,
            work.gradient,
            *work.moments,
            *scales,
            work.step,
            work.is_bad,
            count,
            work.first,
            work.key,
            work.learning_rate,
            work.weight_decay,
            *work.betas,
            work.eps,
            EIGHT_BIT=work.scales is not None,
            STOCHASTIC=work.stochastic_rounding,
            BLOCK=block,
            ROWS=rows,
            num_warps=8,
        )


@triton.jit(do_not_specialize=["first", "key", "learning_rate", "weight_decay", "beta1", "beta2", "eps"])
def _update(
    weights_at,
    gradient_at,
    first_at,
    second_at,
    first_scale_at,
    second_scale_at,
    step_at,
    is_bad_at,
    count,
    first,
    key,
    learning_rate,
    weight_decay,
    beta1,
    beta2,
    eps,
    EIGHT_BIT: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program: `ROWS` blocks of `BLOCK` numbers."""
    count = tl.where(tl.load(is_bad_at) == 0.0, count, 0)
    step = tl.load(step_at)
    blocks = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    places = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = places < count
    block_mask = blocks * BLOCK < count

    gradient = tl.load(gradient_at + places, mask=mask, other=0.0).to(tl.float32)
    weights = tl.load(weights_at + places, mask=mask, other=0.0).to(tl.float32)
    if EIGHT_BIT:
        codes = tl.load(first_at + places, mask=mask, other=0).to(tl.int32)
        scale = tl.load(first_scale_at + blocks, mask=block_mask, other=0.0)
        size = (tl.abs(codes) + _SIGNED_OFFSET << _SIGNED_SHIFT).to(tl.float32, bitcast=True)
        size = tl.where(codes == 0, 0.0, size) * scale[:, None]
        moment = tl.where(codes < 0, -size, size)
        codes = tl.load(second_at + places, mask=mask, other=0).to(tl.int32)
        scale = tl.load(second_scale_at + blocks, mask=block_mask, other=0.0)
        root = (codes + _ROOT_OFFSET << _ROOT_SHIFT).to(tl.float32, bitcast=True)
        root = tl.where(codes == 0, 0.0, root) * scale[:, None]
        square = root * root
    else:
        moment = tl.load(first_at + places, mask=mask, other=0.0)
        square = tl.load(second_at + places, mask=mask, other=0.0)

    moment += (1 - beta1) * (gradient - moment)
    square = beta2 * square + (1 - beta2) * gradient * gradient
    root = tl.sqrt(square)
    denominator = root / tl.sqrt(1 - tl.exp(step * tl.log(beta2))) + eps
    step_size = learning_rate / (1 - tl.exp(step * tl.log(beta1)))
    weights = weights * (1 - learning_rate * weight_decay) - step_size * moment / denominator

    if STOCHASTIC or EIGHT_BIT:
        random = _random_bits(key, step, first + places)
    if STOCHASTIC:
        bits = weights.to(tl.int32, bitcast=True) + (random & 0xFFFF)
        weights = (bits & -0x10000).to(tl.float32, bitcast=True)
    tl.store(weights_at + places, weights.to(weights_at.dtype.element_ty), mask=mask)
    if EIGHT_BIT:
        scale = tl.max(tl.abs(moment), axis=1)
        ratios = (tl.abs(moment) / tl.maximum(scale, _TINY)[:, None]).to(tl.int32, bitcast=True)
        codes = (ratios + _SIGNED_HALF >> _SIGNED_SHIFT) - _SIGNED_OFFSET
        codes = tl.minimum(tl.maximum(codes, 0), _SIGNED_LARGEST)
        tl.store(first_at + places, tl.where(moment < 0, -codes, codes).to(tl.int8), mask=mask)
        tl.store(first_scale_at + blocks, scale, mask=block_mask)
        scale = tl.max(root, axis=1)
        ratios = (root / tl.maximum(scale, _TINY)[:, None]).to(tl.int32, bitcast=True)
        by_chance = (random >> 16 & 0xFFFF) << _ROOT_SPARE
        codes = (ratios + by_chance >> _ROOT_SHIFT) - _ROOT_OFFSET
        codes = tl.minimum(tl.maximum(codes, (root > 0).to(tl.int32)), _ROOT_LARGEST)
        tl.store(second_at + places, codes.to(tl.uint8), mask=mask)
        tl.store(second_scale_at + blocks, scale, mask=block_mask)
    else:
        tl.store(first_at + places, moment, mask=mask)
        tl.store(second_at + places, square, mask=mask)


@triton.jit
def _random_bits(key, step, places):
    """See `rounding.random_bits`; 32 bits without a sign."""
    of_step = _scramble(key.to(tl.uint32) + step.to(tl.uint32))
    return _scramble(_scramble(places.to(tl.uint32) ^ of_step) + of_step).to(tl.int32, bitcast=True)


@triton.jit
def _scramble(bits):
    """See `rounding.scramble`."""
    bits ^= bits >> 16
    bits *= 0x7FEB352D
    bits ^= bits >> 15
    bits *= 0x846CA68B
    return bits ^ (bits >> 16)
