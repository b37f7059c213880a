"""AdamW over a model's parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from sft_cli.recipe.schema import OptimizerSection


def build_adamw(parameters: Iterable[nn.Parameter], options: OptimizerSection) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only: norms, biases, `A_log` and `dt_bias` have one dimension."""
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        # Sharded ones and whole ones can't be in one call of a fused kernel.
        groups[parameter.ndim > 1, isinstance(parameter, DTensor)].append(parameter)
    return torch.optim.AdamW(
        [
            {"params": group, "weight_decay": options.weight_decay if is_matrix else 0.0}
            for (is_matrix, _), group in groups.items()
        ],
        lr=options.learning_rate,
        betas=options.betas,
        eps=options.eps,
        fused=True,
    )
