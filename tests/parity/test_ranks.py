"""A step's numbers don't depend on how its micro-batches are spread over ranks and over accumulation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models import WORDS, make_model
from support.ranks import on_ranks
from support.rows import random_rows
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from sft_cli.data.batch import Batch, pack_rows
from sft_cli.data.rows import rows_from_lists
from sft_cli.model.language_model import LanguageModel
from sft_cli.optim.adamw import build_adamw
from sft_cli.recipe.schema import OptimizerSection
from sft_cli.train.step import TrainStep

FAMILIES = ["qwen3_5", "qwen3"]
"""Separate groups for embedding and head, and a tied weight in the root's group."""
PACKS = [[30, 34], [64], [10, 20, 30], [5, 50]]


def one_step(model: LanguageModel, micro_batches: list[Batch]) -> dict[str, Any]:
    """Loss, norm, gradients and updated weights of one step; whole tensors."""
    optimizer = build_adamw(model.parameters(), OptimizerSection(learning_rate=1e-3, weight_decay=0.1))
    gradients: dict[str, torch.Tensor] = {}
    optimizer.register_step_pre_hook(
        lambda *_: gradients.update({name: whole(p.grad) for name, p in model.named_parameters()})
    )
    step = TrainStep(model, optimizer, lambda step: 1e-3, max_grad_norm=None, device=torch.device("cpu"))
    result = step(1, micro_batches, 0)
    return {
        "loss": result.loss.item(),
        "grad_norm": result.grad_norm.item(),
        "tokens": result.totals.tokens,
        "supervised_tokens": result.totals.supervised_tokens,
        "gradients": gradients,
        "weights": {name: whole(p.detach()) for name, p in model.named_parameters()},
    }


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def packs() -> list[Batch]:
    lengths = [length for pack in PACKS for length in pack]
    rows = random_rows(lengths, words=WORDS)
    starts = [sum(len(pack) for pack in PACKS[:i]) for i in range(len(PACKS))]
    return [
        pack_rows(rows, list(range(start, start + len(pack))), 64) for start, pack in zip(starts, PACKS, strict=True)
    ]


def spread_over_ranks(mesh: DeviceMesh, families: list[str]) -> dict[str, Any]:
    """Rank r takes every r-th pack, as the loader does."""
    mine = packs()[mesh.get_local_rank() :: mesh.size()]
    return {family: one_step(make_model(family, mesh=mesh, checkpointing="full"), mine) for family in families}


@pytest.fixture(scope="module")
def one_rank() -> dict[str, Any]:
    return on_ranks(1, spread_over_ranks, FAMILIES)[0]


@pytest.fixture(scope="module")
def two_ranks() -> list[dict[str, Any]]:
    return on_ranks(2, spread_over_ranks, FAMILIES)


def assert_same_step(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    assert found["tokens"] == expected["tokens"]
    assert found["supervised_tokens"] == expected["supervised_tokens"]
    for name, gradient in expected["gradients"].items():
        torch.testing.assert_close(found["gradients"][name], gradient, atol=1e-6, rtol=1e-5)
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight, atol=2e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_make_the_step_of_one(one_rank: Any, two_ranks: Any, family: str) -> None:
    for rank in two_ranks:
        assert_same_step(rank[family], one_rank[family])


def unsharded_steps(mesh: DeviceMesh) -> tuple[dict[str, Any], dict[str, Any]]:
    """Four micro-batches without FSDP2, and the same rows in one."""
    lengths = [length for pack in PACKS for length in pack]
    together = pack_rows(random_rows(lengths, words=WORDS), list(range(len(lengths))), 256)
    return one_step(make_model("qwen3_5"), packs()), one_step(make_model("qwen3_5"), [together])


def test_four_micro_batches_make_the_step_of_one(one_rank: Any) -> None:
    accumulated, together = on_ranks(1, unsharded_steps)[0]
    assert_same_step(accumulated, together)
    assert_same_step(one_rank["qwen3_5"], together)


FEW, MANY = 2, 200


def uneven_ranks(mesh: DeviceMesh) -> dict[str, Any]:
    """Rank 0 has `FEW` supervised tokens, rank 1 has `MANY`."""
    batches = uneven_batches()
    return one_step(make_model("qwen3_5", mesh=mesh), batches[mesh.get_local_rank() :: mesh.size()])


def uneven_batches() -> list[Batch]:
    tokens = random_rows([201, 201], words=WORDS).token_ids.reshape(2, 201).tolist()
    supervised = [[0] * (201 - FEW) + [1] * FEW, [0] + [1] * MANY]
    rows = rows_from_lists(list(zip(tokens, supervised, strict=True)))
    return [pack_rows(rows, [0], 201), pack_rows(rows, [1], 201)]


def test_a_rank_weighs_by_its_supervised_tokens() -> None:
    """A mean of each rank's mean would be (a + b) / 2; the truth is (2 a + 200 b) / 202."""
    found = on_ranks(2, uneven_ranks)
    model = make_model("qwen3_5", loss="torch")
    sums = [model(batch.model_inputs(), batch.targets) for batch in uneven_batches()]
    weighted = sum(sums) / (FEW + MANY)
    mean_of_means = (sums[0] / FEW + sums[1] / MANY) / 2
    assert abs(weighted.item() - mean_of_means.item()) > 1e-2
    weighted.backward()
    for rank in found:
        assert rank["loss"] == pytest.approx(weighted.item(), abs=1e-5)
        assert rank["supervised_tokens"] == FEW + MANY
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(rank["gradients"][name], parameter.grad, atol=1e-6, rtol=1e-5)


def with_filler(mesh: DeviceMesh) -> dict[str, Any]:
    """Rank 1 has no pack left and takes an emptied one."""
    batch = packs()[0]
    return one_step(make_model("qwen3_5", mesh=mesh), [batch if mesh.get_local_rank() == 0 else packs()[1].emptied()])


def alone(mesh: DeviceMesh) -> dict[str, Any]:
    return one_step(make_model("qwen3_5", mesh=mesh), [packs()[0]])


def test_a_filler_weighs_nothing() -> None:
    expected = on_ranks(1, alone)[0]
    for rank in on_ranks(2, with_filler):
        assert_same_step(rank, expected)
