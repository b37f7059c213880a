"""The chunked loss's own kernels in Triton: logits become their gradient where they lie, and gradients are scaled.

A row of logits is read twice and written once, in float32 arithmetic: torch's kernels would read and write float32
copies of it several times over. Nothing is tuned, and nothing compiled anew for another number of positions.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from sft_cli.kernels.counts import cdiv

WORDS, WARPS = 8192, 16
"""Of a row at a time; 16 neighbours a thread."""
NUMBERS = 4096
"""That one program scales."""


def cross_entropy(logits: Tensor, targets: Tensor, losses: Tensor, *, differentiate: bool) -> None:
    """The cross-entropy of each row, and its gradient in the logits' place.

    Args:
        logits: (rows, words), contiguous; with `differentiate` changed to softmax minus one at the target.
        targets: int64 (rows,).
        losses: float32 (rows,), written.
    """
    rows, words = logits.shape
    with torch.cuda.device_of(logits):
        cross_entropy_in_place[(rows,)](
            logits,
            targets,
            losses,
            words,
            TURNS=cdiv(words, WORDS),
            DIFFERENTIATE=differentiate,
            WORDS=WORDS,
            num_warps=WARPS,
        )


def scale(values: Tensor, by: Tensor) -> Tensor:
    """`values`, multiplied in place by a float32 scalar on the device, in float32 arithmetic.

    torch would round the scalar to bfloat16 first: all numbers off by the same up to 0.4%.
    """
    count = values.numel()
    if count:
        with torch.cuda.device_of(values):
            cross_entropy_scaled_in_place[(cdiv(count, NUMBERS),)](values, by, count, NUMBERS=NUMBERS, num_warps=8)
        increment_version(values)  # as torch's own operations in place do
    return values


@triton.jit
def cross_entropy_in_place(
    logits_at, targets_at, losses_at, words, TURNS: tl.constexpr, DIFFERENTIATE: tl.constexpr, WORDS: tl.constexpr
):
    """One program: a row, in `TURNS` of `WORDS`."""
    row = tl.program_id(0).to(tl.int64)
    logits_at += row * words
    target = tl.load(targets_at + row)
    of_target = tl.load(logits_at + target).to(tl.float32)

    places = tl.arange(0, WORDS)
    largest = -float("inf")
    total = 0.0
    for turn in range(TURNS):
        at = turn * WORDS + places
        logits = tl.load(logits_at + at, mask=at < words, other=-float("inf")).to(tl.float32)
        before = largest
        largest = tl.maximum(before, tl.max(logits))
        total = total * tl.exp(before - largest) + tl.sum(tl.exp(logits - largest))
    tl.store(losses_at + row, largest - of_target + tl.log(total))

    if DIFFERENTIATE:
        share = 1.0 / total
        tl.debug_barrier()  # every thread has read the target's logit
        for turn in range(TURNS):
            at = turn * WORDS + places
            logits = tl.load(logits_at + at, mask=at < words, other=0.0).to(tl.float32)
            gradient = tl.exp(logits - largest) * share - tl.where(at == target, 1.0, 0.0)
            tl.store(logits_at + at, gradient.to(logits_at.dtype.element_ty), mask=at < words)


@triton.jit
def cross_entropy_scaled_in_place(values_at, by_at, count, NUMBERS: tl.constexpr):
    """One program: `NUMBERS` numbers."""
    places = tl.program_id(0).to(tl.int64) * NUMBERS + tl.arange(0, NUMBERS)
    values = tl.load(values_at + places, mask=places < count, other=0.0).to(tl.float32) * tl.load(by_at)
    tl.store(values_at + places, values.to(values_at.dtype.element_ty), mask=places < count)
