"""The optimizer that a recipe asks for, over a model's parameters."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from sft_cli.optim.low_precision import LowPrecisionAdamW
from sft_cli.recipe.schema import OptimizerSection


def build_adamw(
    parameters: Iterable[nn.Parameter], options: OptimizerSection, *, seed: int = 0
) -> torch.optim.AdamW | LowPrecisionAdamW:
    """AdamW with weight decay on matrices only: norms, biases, `A_log` and `dt_bias` have one dimension.

    torch's fused one for float32 weights with float32 moments, ours for the rest: torch's keeps the moments in the
    weights' dtype, and a second moment in bfloat16 stands still where `1 - betas[1]` is less than its rounding.

    Args:
        parameters: of one dtype, whole or sharded; their order numbers the random draws.
        seed: of stochastic rounding.
    """
    matrices, vectors = [], []
    for parameter in parameters:
        (vectors if parameter.ndim < 2 else matrices).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    is_bfloat16 = any(parameter.dtype == torch.bfloat16 for parameter in [*matrices, *vectors])
    if options.name == "adamw" and not is_bfloat16:
        return torch.optim.AdamW(groups, lr=options.learning_rate, betas=options.betas, eps=options.eps, fused=True)
    return LowPrecisionAdamW(
        groups,
        lr=options.learning_rate,
        betas=options.betas,
        eps=options.eps,
        eight_bit=options.name == "adamw_8bit",
        stochastic_rounding=options.stochastic_rounding,
        seed=seed,
    )
