"""The slot `loss`: output projection and cross-entropy in one, so that logits need not exist whole."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

IGNORED = -100
"""The target of a position that the loss does not count."""

CHUNK_TOKENS = 1024
"""Positions whose float32 logits `chunked` holds at a time: 0.95 GiB at 248,320 words."""


def whole(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Summed cross-entropy of all positions from one float32 logits tensor.

    Args:
        hidden: (N, hidden) after the final norm.
        weight: (words, hidden) of the output projection.
        targets: int64 (N,), already shifted; `IGNORED` where a position does not count.

    Returns:
        float32 scalar, the sum over the positions that count; 0, with a graph, where none does.
    """
    return F.cross_entropy(F.linear(hidden, weight).float(), targets, ignore_index=IGNORED, reduction="sum")


def chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """As `whole`, but only for the positions that count, `CHUNK_TOKENS` at a time, logits recomputed in backward."""
    counted = targets != IGNORED
    hidden, targets = hidden[counted], targets[counted]
    losses = [
        checkpoint(whole, h, weight, t, use_reentrant=False)
        for h, t in zip(hidden.split(CHUNK_TOKENS), targets.split(CHUNK_TOKENS), strict=True)
    ]
    return torch.stack(losses).sum()


LOSS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"chunked": chunked, "torch": whole}
