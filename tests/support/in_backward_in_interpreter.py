"""A process of its own, told TRITON_INTERPRET=1: updates in backward through the kernel and through the CPU's code.

Written for `tests/unit/optim/test_update_triton.py`.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from torch import Tensor, nn

from sft_cli.optim import partial_sums
from sft_cli.optim.adamw import build_adamw
from sft_cli.optim.in_backward import InBackward
from sft_cli.optim.low_precision import LowPrecisionAdamW
from sft_cli.parallel.device import local_device
from sft_cli.parallel.mesh import process_group
from sft_cli.plan import moments_offload
from sft_cli.recipe.schema import OptimizerSection
from support.ports import lone_rank_environment
from support.tensors import largest

partial_sums.PLACES = 4  # fewer than the largest tensor needs
moments_offload.FEWEST_NUMBERS = 4096  # some tensors are small, and updated together


def trained(*, by_kernel: bool) -> tuple[list[float], list[Tensor], bool]:
    """Norms of four steps, weights after them, and whether a rehearsal before the last changed nothing."""
    LowPrecisionAdamW.sums_squares = lambda self, parameter: by_kernel  # type: ignore[method-assign]
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(256, 48), nn.Linear(48, 300), nn.Linear(300, 5)).bfloat16()
    options: dict[str, Any] = {"name": "adamw_8bit", "stochastic_rounding": True, "in_backward": True}
    optimizer = build_adamw(layers.parameters(), OptimizerSection(learning_rate=1e-2, **options))
    in_backward = InBackward(optimizer)

    def backward() -> None:
        layers(torch.randn(16, 256).bfloat16()).float().square().sum().backward()
        in_backward.finish()

    norms, is_unchanged = [], True
    for step in range(4):
        if step == 3:
            before = [parameter.clone() for parameter in layers.parameters()]
            with in_backward.rehearsal():
                backward()
            in_backward.grad_norm()
            is_unchanged = all(map(torch.equal, before, layers.parameters()))
        torch.manual_seed(step)
        backward()
        norms.append(in_backward.grad_norm().item())
    state = [value for parameter in layers.parameters() for value in optimizer.state[parameter].values()]
    return norms, [*layers.parameters(), *state], is_unchanged


def main() -> None:
    """Both."""
    os.environ |= lone_rank_environment()
    with process_group(local_device("cpu")):
        (found, ours, is_unchanged), (expected, theirs, _) = trained(by_kernel=True), trained(by_kernel=False)
    differences = [
        float((one.detach().double() - other.double()).abs().max()) for one, other in zip(ours, theirs, strict=True)
    ]
    print(
        json.dumps(
            {"norms": found, "expected": expected, "difference": largest(differences), "rehearsal": is_unchanged}
        )
    )


if __name__ == "__main__":
    main()
