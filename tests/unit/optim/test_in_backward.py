"""Updates in backward take what the optimizer says at that moment, whatever it was loaded with meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn

from sft_cli.optim.in_backward import InBackward
from sft_cli.optim.low_precision import LowPrecisionAdamW

MAKE: dict[str, Callable[[Iterable[dict]], torch.optim.Optimizer]] = {
    "torch's": lambda groups: torch.optim.AdamW(groups, lr=0.1, fused=True),
    "ours": lambda groups: LowPrecisionAdamW(
        groups, lr=0.1, betas=(0.9, 0.95), eps=1e-8, eight_bit=True, stochastic_rounding=False, seed=0
    ),
}


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
@pytest.mark.parametrize("is_late", [False, True], ids=["by a hook", "after backward"])
def test_the_rate_is_the_optimizers_after_it_has_loaded_a_state(
    make: Callable[[Iterable[dict]], torch.optim.Optimizer], is_late: bool
) -> None:
    # As a run that replays steps and then goes back to its checkpoint: loading makes new groups.
    linear = nn.Linear(64, 4, bias=False)
    weight = linear.weight
    optimizer = make([{"params": [weight], "weight_decay": 0.5}])
    in_backward = InBackward(optimizer, late=[weight] if is_late else ())

    def step() -> bool:
        """Whether the weight has moved."""
        before = weight.detach().clone()
        linear(torch.ones(2, 64)).sum().backward()
        in_backward.finish()
        return not torch.equal(before, weight)

    assert step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert step()
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    assert not step()
