"""The slot `loss`: output projection and cross-entropy in one, so that logits need not exist whole."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sft_cli.kernels import liger
from sft_cli.plan.memory import LOSS_CHUNK_TOKENS


def whole(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Summed cross-entropy of all positions from one float32 logits tensor.

    Args:
        hidden: (N, hidden) after the final norm, at the positions that count.
        weight: (words, hidden) of the output projection.
        targets: int64 (N,), the word that each should have.

    Returns:
        float32 scalar; 0, with a graph, where N is 0.
    """
    return F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="sum")


def chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """As `whole`, but `LOSS_CHUNK_TOKENS` positions at a time, with the logits computed again in backward."""
    losses = [
        checkpoint(whole, h, weight, t, use_reentrant=False)
        for h, t in zip(hidden.split(LOSS_CHUNK_TOKENS), targets.split(LOSS_CHUNK_TOKENS), strict=True)
    ]
    return torch.stack(losses).sum()


LOSS = {"liger": liger.load_loss, "chunked": lambda: chunked, "torch": lambda: whole}
"""Backend to what loads it."""
