"""The loss on held-out rows."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from sft_cli.data.batch import Batch
from sft_cli.parallel.fsdp import reshard


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Batch], device: torch.device) -> tuple[float, int]:
    """Mean cross-entropy over all supervised tokens of all ranks, and their number.

    Args:
        batches: this rank's; every rank must have the same number.
    """
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    for batch in batches:
        batch = batch.to(device)
        totals[0] += model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets)
        totals[1] += batch.supervised_tokens
    dist.all_reduce(totals)
    reshard(model)
    model.train()
    loss_sum, supervised_tokens = totals.tolist()
    return loss_sum / supervised_tokens, int(supervised_tokens)
