"""Which 8-bit moments wait in host memory, and how many the GPU holds meanwhile: `optimizer.offload`."""

from __future__ import annotations

SLOTS = 3
"""Layers whose moments are on the GPU at once: one on its way there, one in use, one on its way back."""
FEWEST_NUMBERS, MOST_NUMBERS = 1 << 18, 1 << 28
"""Of a tensor whose moments wait. A smaller one is not worth it; of a larger one (embedding, head) every slot would
have the size."""


def is_small(numbers: int) -> bool:
    """Whether a tensor's shard of so many numbers is not worth a copy or a launch of its own."""
    return numbers < FEWEST_NUMBERS


def waits(numbers: int) -> bool:
    """Whether the moments of a tensor's shard of so many numbers wait in host memory."""
    return not is_small(numbers) and numbers <= MOST_NUMBERS
