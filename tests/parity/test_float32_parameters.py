"""The decay's parameters stay in float32 in a bfloat16 model, and the same on every rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models import WORDS, make_sharded_model
from support.ranks import on_ranks
from support.rows import random_rows
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import pack_rows
from sft_cli.optim.adamw import build_adamw
from sft_cli.recipe.schema import OptimizerSection
from sft_cli.train.step import TrainStep


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, train)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return on_ranks(1, train)[0]


def train(mesh: DeviceMesh) -> dict[str, Any]:
    model, reduction = make_sharded_model("qwen3_5", mesh=mesh, compute_dtype=torch.bfloat16)
    block: Any = model.delta_net_blocks[0]
    seen: list[Tensor] = []
    model.blocks[0].register_forward_hook(lambda *_: seen.append(block.A_log.detach().clone()), prepend=True)
    before = [parameter.detach().clone() for parameter in model.float32_parameters]
    packs = [pack_rows(random_rows([40, 24], words=WORDS), order, 64) for order in ([0, 1], [1, 0])]
    optimizer = build_adamw(model.parameters(), OptimizerSection())
    gradients: list[Tensor] = []
    optimizer.register_step_pre_hook(lambda *_: gradients.extend(p.grad.clone() for p in model.float32_parameters))
    step = TrainStep(model, optimizer, lambda step: 1e-3, 1.0, torch.device("cpu"), reduction)
    mine = packs[mesh.get_local_rank() :: mesh.size()]
    norm = step(1, mine, 0).read().grad_norm
    after = [parameter.detach().clone() for parameter in model.float32_parameters]
    weight = next(iter(block.in_proj_qkv.parameters()))
    return {
        "seen": seen[0], "before": before, "gradients": gradients, "after": after, "norm": norm,
        "elsewhere": weight.dtype,
    }  # fmt: skip


def test_forward_sees_the_masters_themselves(ranks: Any) -> None:
    for rank in ranks:
        assert rank["seen"].dtype == torch.float32
        assert torch.equal(rank["seen"], rank["before"][0])
        # Not what bfloat16 holds of it, or nothing would be shown.
        assert not torch.equal(rank["seen"], rank["seen"].bfloat16().float())


def test_they_are_trained_and_the_same_on_every_rank(ranks: Any) -> None:
    assert len(ranks[0]["after"]) == 6  # two of each of three blocks
    for first, second, before in zip(ranks[0]["after"], ranks[1]["after"], ranks[0]["before"], strict=True):
        assert torch.equal(first, second)
        assert not torch.equal(first, before)


def test_their_gradients_are_summed_and_count_in_the_norm(ranks: Any, alone: Any) -> None:
    for first, second, expected in zip(ranks[0]["gradients"], ranks[1]["gradients"], alone["gradients"], strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, expected, rtol=5e-2, atol=1e-4)  # bfloat16 around them
    assert ranks[0]["norm"] == ranks[1]["norm"] == pytest.approx(alone["norm"], rel=2e-2)
