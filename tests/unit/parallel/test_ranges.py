"""Ranges are there while torch's profiler is on, and nothing while it is off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from sft_cli.parallel.activation_checkpointing import checkpoint_layers
from sft_cli.parallel.ranges import marked
from sft_cli.plan.profiling import BACKWARD, FORWARD, RECOMPUTATION


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh()


def steps(layers: int) -> Callable[[], None]:
    blocks = nn.ModuleList(Block() for _ in range(3))
    checkpoint_layers(list(blocks), layers=layers)

    def step() -> None:
        with marked(FORWARD):
            x = torch.randn(2, 8)
            for block in blocks:
                x = block(x)
        with marked(BACKWARD):
            x.sum().backward()

    return step


def ranges_of(step: Callable[[], None]) -> Counter[str]:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    return Counter(event.name for event in profiler.events() if event.name.startswith("sftune: "))


@pytest.mark.parametrize("layers", [0, 2, 3])
def test_a_recomputed_layer_is_a_range_and_its_first_forward_is_none(layers: int) -> None:
    expected = {FORWARD: 1, BACKWARD: 1, **({RECOMPUTATION: layers} if layers else {})}
    assert ranges_of(steps(layers)) == expected


def test_nothing_is_recorded_or_asked_while_the_profiler_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("a range without a profiler")

    step = steps(3)
    monkeypatch.setattr("sft_cli.parallel.ranges.record_function", fail)
    assert isinstance(marked(FORWARD), nullcontext)
    step()
    with pytest.raises(AssertionError, match="without a profiler"), profile(activities=[ProfilerActivity.CPU]):
        step()
