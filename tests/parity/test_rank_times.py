"""Ranks tell how they fare in the step's own collective; a slow one is told from those that wait for it."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from support.models import make_sharded_model
from support.ranks import on_ranks
from support.rows import random_rows
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import pack_rows
from sft_cli.optim.adamw import build_adamw
from sft_cli.recipe.schema import OptimizerSection
from sft_cli.train.step import TrainStep, agree
from sft_cli.train.step_meters import Own, StepMeters

CPU = torch.device("cpu")
NAP_SECONDS = 0.2
SLOW = 1


@pytest.fixture(scope="module")
def two_ranks() -> list[dict[str, Any]]:
    return on_ranks(2, experiment)


def experiment(mesh: DeviceMesh) -> dict[str, Any]:
    rank = mesh.get_local_rank()
    told = agree(1, [], 0, 5, Own(block_time=10 + rank, health=1 << rank)).of_ranks
    model, reduction = make_sharded_model("qwen3_5", mesh=mesh)
    if rank == SLOW:
        block = model.blocks[1]
        fast = block.forward

        def slow(*arguments: Any, **options: Any) -> Any:
            time.sleep(NAP_SECONDS)
            return fast(*arguments, **options)

        block.forward = slow
    optimizer = build_adamw(model.parameters(), OptimizerSection(learning_rate=1e-3))
    meters = StepMeters.of_ranks(CPU, mesh.size(), model.blocks, lambda: 0)
    step = TrainStep(model, optimizer, lambda step: 1e-3, 1.0, CPU, reduction, meters=meters)
    batch = pack_rows(random_rows([30, 34], words=64), [0, 1], 64)
    totals = [step(number, [batch, batch], 0).totals for number in (1, 2, 3)]
    return {"told": told, "block_times": [one.block_time for one in totals[-1].of_ranks], "phases": meters.read()}


def test_each_rank_hears_what_all_have_told(two_ranks: list[dict[str, Any]]) -> None:
    for rank in two_ranks:
        assert rank["told"] == (Own(10, 1), Own(11, 2))


def test_the_slow_rank_is_known_though_both_take_as_long(two_ranks: list[dict[str, Any]]) -> None:
    first, second = two_ranks
    assert first["block_times"] == second["block_times"]
    fast, slow = first["block_times"]
    assert slow - fast > 0.5 * NAP_SECONDS / 64 * 1e12, "of two ranks the one that sleeps inside a layer"
    # The other one waits for it where it gathers the next layer: by whole phases nobody could tell.
    assert first["phases"].forward > NAP_SECONDS
    assert second["phases"].forward > NAP_SECONDS
