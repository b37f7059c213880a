"""A step's numbers don't depend on how its micro-batches are spread over ranks and over accumulation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models import REFERENCES, WORDS, make_model, make_sharded_model
from support.ranks import on_ranks
from support.rows import random_rows
from support.tensors import whole
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import Batch, pack_rows
from sft_cli.data.rows import rows_from_lists
from sft_cli.errors import DataError
from sft_cli.model.language_model import LanguageModel
from sft_cli.optim.adamw import build_adamw
from sft_cli.parallel.reduction import GradientReduction
from sft_cli.recipe.schema import OptimizerSection
from sft_cli.train.evaluate import evaluate
from sft_cli.train.step import TrainStep, agree

FAMILIES = ["qwen3_5", "llama", "qwen3"]
"""The last one has a tied weight, in the root's group."""
PACKS = [[30, 34], [64], [10, 20, 30], [5, 50]]
FEW, MANY = 2, 200
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def one_rank() -> dict[str, Any]:
    return on_ranks(1, experiments)[0]


@pytest.fixture(scope="module")
def two_ranks() -> list[dict[str, Any]]:
    return on_ranks(2, experiments)


def experiments(mesh: DeviceMesh) -> dict[str, Any]:
    """All that is compared, in one start of the ranks: starting them takes longer than this."""
    found: dict[str, Any] = {
        family: one_step(make_sharded_model(family, mesh=mesh, checkpointing="full"), share(packs(), mesh))
        for family in FAMILIES
    }
    found["other rows"] = other_rows(mesh)
    found["uneven"] = one_step(make_sharded_model("qwen3_5", mesh=mesh), share(uneven_batches(), mesh))
    found["short"] = one_step(make_sharded_model("qwen3_5", mesh=mesh), share(packs()[:1], mesh))
    sharded = make_sharded_model("qwen3_5", mesh=mesh, checkpointing="full")
    found["evaluation"] = evaluate(sharded[0], share(packs()[:3], mesh), CPU)
    found["step after evaluation"] = one_step(sharded, share(packs(), mesh))
    if mesh.size() == 1:
        found["unsharded"] = one_step(make_sharded_model("qwen3_5"), packs())
        found["in one micro-batch"] = one_step(make_sharded_model("qwen3_5"), [all_rows_in_one_pack()])
    return found


def other_rows(mesh: DeviceMesh) -> str:
    """What each rank is told where they have read different rows; empty where there is but one."""
    try:
        agree(3, [], 0, digest=0xFFFFFF - mesh.get_local_rank())
    except DataError as error:
        return error.what
    return ""


def share(batches: list[Batch], mesh: DeviceMesh) -> list[Batch]:
    """Rank r takes every r-th micro-batch, and a filler where the last round is short, as the loader does."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    rounds = range(0, len(batches), ranks)
    return [batches[i + rank] if i + rank < len(batches) else batches[i].emptied() for i in rounds]


def one_step(sharded: tuple[LanguageModel, GradientReduction], micro_batches: list[Batch]) -> dict[str, Any]:
    """Loss, norm, gradients and updated weights of one step; whole tensors."""
    model, reduction = sharded
    optimizer = build_adamw(model.parameters(), OptimizerSection(learning_rate=1e-3, weight_decay=0.1))
    gradients: dict[str, torch.Tensor] = {}
    optimizer.register_step_pre_hook(
        lambda *_: gradients.update({name: whole(p.grad) for name, p in model.named_parameters()})
    )
    step = TrainStep(model, optimizer, lambda step: 1e-3, max_grad_norm=None, device=CPU, reduction=reduction)
    result = step(1, micro_batches, 0)
    return {
        "loss": result.loss.item(),
        "grad_norm": result.grad_norm.item(),
        "tokens": result.totals.tokens,
        "supervised_tokens": result.totals.supervised_tokens,
        "gradients": gradients,
        "weights": {name: whole(p.detach()) for name, p in model.named_parameters()},
    }


def packs() -> list[Batch]:
    lengths = [length for pack in PACKS for length in pack]
    rows = random_rows(lengths, words=WORDS)
    starts = [sum(len(pack) for pack in PACKS[:i]) for i in range(len(PACKS))]
    return [
        pack_rows(rows, list(range(start, start + len(pack))), 64) for start, pack in zip(starts, PACKS, strict=True)
    ]


def all_rows_in_one_pack() -> Batch:
    lengths = [length for pack in PACKS for length in pack]
    return pack_rows(random_rows(lengths, words=WORDS), list(range(len(lengths))), 256)


def uneven_batches() -> list[Batch]:
    """One with `FEW` supervised tokens, one with `MANY`."""
    tokens = random_rows([201, 201], words=WORDS).token_ids.reshape(2, 201).tolist()
    supervised = [[0] * (201 - FEW) + [1] * FEW, [0] + [1] * MANY]
    rows = rows_from_lists(list(zip(tokens, supervised, strict=True)))
    return [pack_rows(rows, [0], 201), pack_rows(rows, [1], 201)]


def assert_same_step(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    assert found["tokens"] == expected["tokens"]
    assert found["supervised_tokens"] == expected["supervised_tokens"]
    for name, gradient in expected["gradients"].items():
        torch.testing.assert_close(found["gradients"][name], gradient, atol=1e-6, rtol=1e-5)
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight, atol=2e-5, rtol=0)


def test_ranks_that_have_read_different_rows_all_say_so(
    one_rank: dict[str, Any], two_ranks: list[dict[str, Any]]
) -> None:
    assert one_rank["other rows"] == ""
    for rank in two_ranks:
        assert rank["other rows"] == "ranks have read different rows: step 3 is not the same on all of them"


@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_make_the_step_of_one(one_rank: Any, two_ranks: Any, family: str) -> None:
    for rank in two_ranks:
        assert_same_step(rank[family], one_rank[family])


def test_four_micro_batches_make_the_step_of_one(one_rank: Any) -> None:
    assert_same_step(one_rank["unsharded"], one_rank["in one micro-batch"])
    assert_same_step(one_rank["qwen3_5"], one_rank["in one micro-batch"])


def test_a_filler_weighs_nothing(one_rank: Any, two_ranks: Any) -> None:
    """One pack on two ranks: the second rank's is empty."""
    for rank in two_ranks:
        assert_same_step(rank["short"], one_rank["short"])


def test_an_evaluation_is_the_same_on_two_ranks_and_changes_nothing(one_rank: Any, two_ranks: Any) -> None:
    expected_loss, expected_tokens = one_rank["evaluation"]
    assert expected_tokens == sum(batch.supervised_tokens for batch in packs()[:3])
    for rank in two_ranks:
        loss, tokens = rank["evaluation"]
        assert loss == pytest.approx(expected_loss, abs=1e-6)
        assert tokens == expected_tokens
        assert_same_step(rank["step after evaluation"], one_rank["qwen3_5"])


def test_a_rank_weighs_by_its_supervised_tokens(two_ranks: Any) -> None:
    """A mean of each rank's mean would be (a + b) / 2; the truth is (2 a + 200 b) / 202."""
    model = make_model("qwen3_5", kernels=REFERENCES.model_copy(update={"loss": "torch"}))
    sums = [
        model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets) for batch in uneven_batches()
    ]
    weighted = sum(sums) / (FEW + MANY)
    mean_of_means = (sums[0] / FEW + sums[1] / MANY) / 2
    assert abs(weighted.item() - mean_of_means.item()) > 1e-2
    weighted.backward()
    for rank in two_ranks:
        assert rank["uneven"]["loss"] == pytest.approx(weighted.item(), abs=1e-5)
        assert rank["uneven"]["supervised_tokens"] == FEW + MANY
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(rank["uneven"]["gradients"][name], parameter.grad, atol=1e-6, rtol=1e-5)
