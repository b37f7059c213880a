"""The optimizer that a recipe asks for, over a model's parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from sft_cli.optim.host_memory import HostMemory
from sft_cli.optim.low_precision import LowPrecisionAdamW
from sft_cli.recipe.schema import OptimizerSection


def build_adamw(
    parameters: Iterable[nn.Parameter],
    options: OptimizerSection,
    *,
    seed: int = 0,
    waiting_in: HostMemory | None = None,
    layers: Iterable[Iterable[nn.Parameter]] = (),
) -> torch.optim.AdamW | LowPrecisionAdamW:
    """AdamW with weight decay on matrices only: norms, biases, `A_log` and `dt_bias` have one dimension.

    torch's fused one for float32 weights with float32 moments, ours for the rest: torch's keeps the moments in the
    weights' dtype, and a second moment in bfloat16 stands still where `1 - betas[1]` is less than its rounding.

    Args:
        parameters: sharded, or whole on every rank; their order numbers the random draws.
        seed: of stochastic rounding.
        waiting_in: where moments wait: with `options.offload`, and only then.
        layers: see `LowPrecisionAdamW`.
    """
    assert options.offload == (waiting_in is not None), "no moments go where the recipe hasn't sent them"
    # Sharded ones and whole ones can't be in one call of a fused kernel. Sorted, so that what is rounded by chance is
    # numbered alike whether a model is sharded or not.
    kinds: dict[tuple[bool, bool, bool], list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        is_vector, is_float32 = parameter.ndim < 2, parameter.dtype == torch.float32
        kinds[is_vector, is_float32, not isinstance(parameter, DTensor)].append(parameter)
    groups = [
        {"params": kinds[kind], "weight_decay": 0.0 if is_vector else options.weight_decay}
        for kind in sorted(kinds)
        for is_vector, *_ in [kind]
    ]
    if options.name == "adamw" and all(is_float32 for _, is_float32, _ in kinds):
        return torch.optim.AdamW(groups, lr=options.learning_rate, betas=options.betas, eps=options.eps, fused=True)
    return LowPrecisionAdamW(
        groups,
        lr=options.learning_rate,
        betas=options.betas,
        eps=options.eps,
        eight_bit=options.name == "adamw_8bit",
        stochastic_rounding=options.stochastic_rounding,
        seed=seed,
        waiting_in=waiting_in,
        layers=layers,
    )
