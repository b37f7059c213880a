"""float32 to bfloat16 by chance: up as often as the dropped bits are close to the next number, so the mean is right.

The draws are a hash of seed, step, tensor and the number's place in the whole tensor. So they are the same on any
number of ranks, on replicas of a shard, and after a restart; there is no generator whose state would have to be saved.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

BITS_DROPPED = 16
_WORD = 1 << 32


def tensor_key(seed: int, number: int) -> int:
    """32 bits, signed, for the draws of one tensor of a run."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big", signed=True)


def as_int32(value: int) -> int:
    """A number's lower 32 bits, signed."""
    return (value + (_WORD >> 1)) % _WORD - (_WORD >> 1)


def random_bits(key: int, step: int, first: int, count: int, device: torch.device) -> Tensor:
    """int32 (count,), all 32 bits random.

    Args:
        key: see `tensor_key`.
        step: from 1.
        first: place of the first number in the whole tensor.
    """
    start = as_int32(first)
    places = torch.arange(start, start + count, dtype=torch.int64, device=device).to(torch.int32)
    of_step = scramble(torch.tensor(as_int32(key + step), dtype=torch.int32, device=device))
    return scramble(places ^ of_step)


def scramble(bits: Tensor) -> Tensor:
    """Each of the 32 bits depends on all; `lowbias32` of Chris Wellons, "Prospecting for Hash Functions" (2018)."""
    bits = bits ^ _shifted(bits, 16)
    bits = bits * 0x7FEB352D
    bits = bits ^ _shifted(bits, 15)
    bits = bits * as_int32(0x846CA68B)
    return bits ^ _shifted(bits, 16)


def _shifted(bits: Tensor, count: int) -> Tensor:
    """To the right, zeros coming in; torch's own shift repeats the sign."""
    return (bits >> count) & ((1 << (32 - count)) - 1)


def round_stochastically(values: Tensor, bits: Tensor) -> Tensor:
    """bfloat16 of float32: a random 16 bits are added to what is dropped, and then it is dropped.

    Args:
        bits: int32, of the same shape; the lower 16 count.
    """
    mask = (1 << BITS_DROPPED) - 1
    return ((values.view(torch.int32) + (bits & mask)) & ~mask).view(torch.float32).to(torch.bfloat16)
