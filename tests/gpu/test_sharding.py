"""Options of `sharding` on a GPU: its streams must not see a buffer before it is full, nor after it is taken again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models import WORDS, make_sharded_model
from support.rows import random_rows
from support.tensors import whole
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import Batch, pack_rows
from sft_cli.optim.adamw import build_adamw
from sft_cli.recipe.schema import OptimizerSection
from sft_cli.train.step import TrainStep

OPTIONS: list[dict[str, Any]] = [
    {"buffers": "preallocated"},
    {"buffers": "preallocated", "prefetch": 2, "defer_reduce": True},
    {"prefetch": 0},
    {"reshard_after_forward": False},
]


def three_steps(mesh: DeviceMesh, **sharding: Any) -> dict[str, Tensor]:
    model, reduction = make_sharded_model("llama", mesh=mesh, checkpointing="full", **sharding)
    optimizer = build_adamw(model.parameters(), OptimizerSection(learning_rate=1e-4))
    step = TrainStep(model, optimizer, lambda step: 1e-4, 1.0, torch.device("cuda", 0), reduction)
    for number in range(1, 4):
        step(number, batches(), 0)
    return {name: whole(p).cpu() for name, p in model.named_parameters()}


def batches() -> list[Batch]:
    return [pack_rows(random_rows([40, 24], words=WORDS), order, 64).pinned() for order in ([0, 1], [1, 0], [0, 1])]


@pytest.mark.parametrize("options", OPTIONS, ids=[" ".join(map(str, options.items())) for options in OPTIONS])
def test_an_option_changes_no_weight(mesh: DeviceMesh, options: dict[str, Any]) -> None:
    expected = three_steps(mesh)
    for name, weight in three_steps(mesh, **options).items():
        torch.testing.assert_close(
            weight, expected[name], atol=2e-5, rtol=0, msg=lambda said, name=name: f"{name}: {said}"
        )
