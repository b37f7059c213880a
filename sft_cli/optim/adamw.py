"""AdamW over a model's parameters."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from sft_cli.recipe.schema import OptimizerSection


def build_adamw(parameters: Iterable[nn.Parameter], options: OptimizerSection) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only: norms, biases, `A_log` and `dt_bias` have one dimension."""
    matrices, vectors = [], []
    for parameter in parameters:
        (vectors if parameter.ndim < 2 else matrices).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": options.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=options.learning_rate,
        betas=options.betas,
        eps=options.eps,
        fused=True,
    )
