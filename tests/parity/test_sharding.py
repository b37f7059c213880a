"""Whatever way a model is spread over ranks: gradients as in one process, and the weights after five steps.

`make test` takes a dozen combinations in which every pair of values occurs, without the plain family;
`make parity-full` takes them all.
"""

from __future__ import annotations

import os
from itertools import product
from typing import Any

import pytest
import torch
from support.models import WORDS, make_sharded_model
from support.pairwise import pairwise
from support.ranks import on_ranks
from support.rows import random_rows
from support.tensors import whole
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import Batch, pack_rows
from sft_cli.optim.adamw import build_adamw
from sft_cli.parallel import activation_offload
from sft_cli.parallel.mesh import build_mesh
from sft_cli.parallel.reduction import GradientReduction
from sft_cli.recipe.schema import OptimizerSection
from sft_cli.train.step import TrainStep

OPTIONS: dict[str, list[Any]] = {
    "family": ["qwen3_5", "llama", "qwen3"],  # linear attention, plain, tied
    "reshard_after_forward": [True, False],
    "prefetch": [0, 1, 2],
    "buffers": ["allocator", "preallocated"],
    "defer_reduce": [False, True],
    "cpu_offload": [False, True],
    "activation_checkpointing": [
        {"mode": "none"},
        {"mode": "full"},
        {"mode": "full", "layers": 1, "others": "selective", "offload": True},
        {"mode": "selective"},
        {"mode": "selective", "offload": True},
    ],
}
"""Keys of the recipe's `sharding`, and the model. Every run accumulates over micro-batches."""

FULL = os.environ.get("SFTUNE_PARITY_FULL")
"""A family, all of whose combinations are run."""
SHORT = OPTIONS | {"family": ["qwen3_5", "qwen3"], "prefetch": [1, 2]}
RUNS = (
    [dict(zip(OPTIONS, values, strict=True)) for values in product(*(OPTIONS | {"family": [FULL]}).values())]
    if FULL
    else pairwise(SHORT)
)
PLAIN = {key: values[0] for key, values in OPTIONS.items()}
HYBRID = [
    PLAIN | {"replicas": 2},
    PLAIN | {"replicas": 2, "buffers": "preallocated", "defer_reduce": True, "prefetch": 2},
    PLAIN | {"replicas": 2, "family": "qwen3", "cpu_offload": True, "reshard_after_forward": False},
]
FOUR_RANKS = [
    *HYBRID,
    PLAIN | {"reshard_after_forward": 2, "buffers": "preallocated"},
    PLAIN | {"replicas": 4, "family": "qwen3"},  # the two ranks' `replicas: 2` of the other family
]

STEPS, LEARNING_RATE = 5, 1e-4
"""A weight moves by up to 5e-4, so 2e-5 sees whatever changes its direction; faster, and rounding is amplified."""
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def one_process() -> dict[tuple[int, str], Any]:
    """By number of ranks, whose micro-batches it takes, and family: nothing sharded, nothing checkpointed."""
    return on_ranks(1, unsharded)[0]


@pytest.fixture(scope="module")
def two_ranks() -> list[list[Any]]:
    return on_ranks(2, sharded, [*RUNS, *HYBRID])


@pytest.fixture(scope="module")
def four_ranks() -> list[list[Any]]:
    return on_ranks(4, sharded, FOUR_RANKS)


def unsharded(mesh: DeviceMesh) -> dict[tuple[int, str], Any]:
    compared = {(2, run["family"]) for run in [*RUNS, *HYBRID]} | {(4, run["family"]) for run in FOUR_RANKS}
    return {
        (ranks, family): five_steps(*make_sharded_model(family), packs(ranks)) for ranks, family in sorted(compared)
    }


def sharded(mesh: DeviceMesh, runs: list[dict[str, Any]]) -> list[Any]:
    activation_offload.SMALLEST_BYTES = 1  # in a process of its own
    rank, ranks = mesh.get_local_rank(), mesh.size()
    found = []
    for run in runs:
        run_mesh = build_mesh("cpu", replicas=run.get("replicas", 1))
        model, reduction = make_sharded_model(mesh=run_mesh, **run)
        found.append(five_steps(model, reduction, packs(ranks)[rank::ranks]))
    return found


def packs(ranks: int) -> list[Batch]:
    """Micro-batches of one to three rows, two for every rank."""
    lengths = [[30, 34], [64], [10, 20, 30], [5, 50], [33, 31], [60], [1, 2, 40], [63]][: 2 * ranks]
    rows = random_rows([length for pack in lengths for length in pack], words=WORDS)
    starts = [sum(map(len, lengths[:index])) for index in range(len(lengths))]
    return [
        pack_rows(rows, list(range(start, start + len(pack))), 64) for start, pack in zip(starts, lengths, strict=True)
    ]


def five_steps(model: torch.nn.Module, reduction: GradientReduction, micro_batches: list[Batch]) -> dict[str, Any]:
    """Gradients of the first step; losses, norms, and weights after the last. Whole tensors."""
    optimizer = build_adamw(model.parameters(), OptimizerSection(learning_rate=LEARNING_RATE, weight_decay=0.1))
    step = TrainStep(model, optimizer, lambda step: LEARNING_RATE, max_grad_norm=1.0, device=CPU, reduction=reduction)
    gradients: dict[str, Tensor] = {}

    def keep(*_: Any) -> None:
        if not gradients:
            gradients.update({name: whole(p.grad) for name, p in model.named_parameters()})

    optimizer.register_step_pre_hook(keep)
    results = [step(number, micro_batches, 0).read() for number in range(1, STEPS + 1)]
    return {
        "losses": [result.loss for result in results],
        "norms": [result.grad_norm for result in results],
        "gradients": gradients,
        "weights": {name: whole(p.detach()) for name, p in model.named_parameters()},
    }


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert found["norms"][0] == pytest.approx(expected["norms"][0], rel=1e-6)
    for name, gradient in expected["gradients"].items():
        difference = (found["gradients"][name] - gradient).norm() / gradient.norm()
        assert difference < 1e-6, f"{name}: {difference:.1e}"
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight, atol=2e-5, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


def described(run: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in run.items() if value != PLAIN.get(key)) or "plain"


@pytest.mark.parametrize("index", range(len(RUNS) + len(HYBRID)), ids=[described(run) for run in [*RUNS, *HYBRID]])
def test_two_ranks(one_process: Any, two_ranks: Any, index: int) -> None:
    run = [*RUNS, *HYBRID][index]
    for rank in two_ranks:
        assert_same(rank[index], one_process[2, run["family"]])


@pytest.mark.parametrize("index", range(len(FOUR_RANKS)), ids=[described(run) for run in FOUR_RANKS])
def test_four_ranks(one_process: Any, four_ranks: Any, index: int) -> None:
    for rank in four_ranks:
        assert_same(rank[index], one_process[4, FOUR_RANKS[index]["family"]])
