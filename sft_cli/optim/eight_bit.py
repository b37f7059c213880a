"""Moments in 8 bits: a float of one byte for each number, relative to the largest of its block.

Blocks with a scale of their own are those of Dettmers et al. 2021, "8-bit Optimizers via Block-wise Quantization"
(arXiv 2110.02861): an outlier spoils the 255 others of its block only. The bytes are short floats and no table, as in
Peng et al. 2023, "FP8-LM" (arXiv 2310.18313): the relative error is the same at every size, and encoding is an addition
and a shift.

The second moment is kept as its square root: that has the first moment's range, so that no number keeps its first
moment while its second is lost and the division explodes. It is rounded by chance, so that it falls again after a large
gradient though a step changes it by less than a code: with the nearest code and betas[1] 0.999 updates were off by 66%
after a gradient of 3,000 times the usual size, by chance by 13%; with 0.95 it is 7% and 8%, whatever came before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST_BLOCK, SMALLEST_BLOCK = 256, 64
"""Numbers that share a scale. Smaller blocks than that would make the scales half as large as the codes and more."""

TINY = 2.0**-126
"""float32's smallest normal number: the scale of a block of zeros, which nothing may be divided by."""

_FRACTION_BITS, _ONE = 23, 127
"""Of float32: width of the fraction, and exponent of 1.0."""


@dataclass(frozen=True)
class Code:
    """Short floats in [0, 1], of which `largest` is 1 and 0 is 0.

    Args:
        fraction_bits: of a short float. Its relative error is at most 2^-(fraction_bits + 1).
        largest: the largest code; beside the fraction's bits it leaves 4 for the exponent, so the smallest number above
            0 is about 2^-16.
    """

    fraction_bits: int
    largest: int

    @property
    def shift(self) -> int:
        """How many of float32's bits are dropped."""
        return _FRACTION_BITS - self.fraction_bits

    @property
    def offset(self) -> int:
        """What the upper bits of a float32 have more than its code."""
        return (_ONE << self.fraction_bits) - self.largest

    @property
    def half(self) -> int:
        """Half of what is dropped: added before, it rounds to the nearest."""
        return 1 << (self.shift - 1)

    def encode(self, ratios: Tensor, rounding: int | Tensor) -> Tensor:
        """int32 codes of float32 in [0, 1].

        Args:
            rounding: added to what is dropped.
        """
        codes = ((ratios.view(torch.int32) + rounding) >> self.shift) - self.offset
        return codes.clamp_(0, self.largest)

    def decode(self, codes: Tensor) -> Tensor:
        """float32 in [0, 1] of int32 codes."""
        ratios = ((codes + self.offset) << self.shift).view(torch.float32)
        return ratios.masked_fill_(codes == 0, 0.0)


SIGNED = Code(fraction_bits=3, largest=127)
"""Of the first moment; int8, the sign apart."""
ROOT = Code(fraction_bits=4, largest=255)
"""Of the square root of the second moment; uint8."""
ROOT_SPARE = ROOT.shift - 16
"""How many of the bits that are dropped are more than 16 random ones."""
ROOT_SPARE_HALF = 1 << (ROOT_SPARE - 1)
"""What they are when rounding by chance: a ratio in its last bits beside a code stays that code, whatever is drawn."""


def block_size(shape: torch.Size) -> int | None:
    """Numbers of a tensor that share a scale; None where it stays float32.

    Blocks don't cross rows of dimension 0, along which FSDP2 shards: they are the same on any number of ranks. What has
    no long rows (norms, biases, short convolutions) is small.
    """
    block = math.gcd(math.prod(shape[1:]), LARGEST_BLOCK)
    return block if len(shape) > 1 and block >= SMALLEST_BLOCK else None


def encode_signed(values: Tensor) -> tuple[Tensor, Tensor]:
    """int8 codes and float32 scales (blocks,) of float32 (blocks, block)."""
    ratios, scales = _relative(values.abs())
    return (SIGNED.encode(ratios, SIGNED.half) * values.sign()).to(torch.int8), scales


def decode_signed(codes: Tensor, scales: Tensor) -> Tensor:
    """float32 (blocks, block)."""
    codes = codes.int()
    return SIGNED.decode(codes.abs()).mul_(codes.sign()).mul_(scales[:, None])


def encode_root(roots: Tensor, bits: Tensor) -> tuple[Tensor, Tensor]:
    """uint8 codes and float32 scales (blocks,) of float32 (blocks, block) from 0 on.

    What is not zero does not become zero: it is divided by.

    Args:
        bits: int32 of the same shape; the upper 16 are random.
    """
    ratios, scales = _relative(roots)
    by_chance = (((bits >> 16) & 0xFFFF) << ROOT_SPARE) + ROOT_SPARE_HALF
    return ROOT.encode(ratios, by_chance).maximum((roots > 0).int()).to(torch.uint8), scales


def decode_root(codes: Tensor, scales: Tensor) -> Tensor:
    """float32 (blocks, block)."""
    return ROOT.decode(codes.int()).mul_(scales[:, None])


def _relative(sizes: Tensor) -> tuple[Tensor, Tensor]:
    scales = sizes.amax(dim=1)
    return sizes * scales.clamp_min(TINY).reciprocal()[:, None], scales
