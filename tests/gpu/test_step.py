"""A training step on a GPU: it never waits for the device, and a step that is not finite changes nothing."""

from __future__ import annotations

import pytest
import torch
from gpu.models import FAST, FASTEST, OWN, WORDS, gpu_model, reference_model
from support.rows import random_rows
from support.tensors import own
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import Batch, pack_rows
from sft_cli.optim.adamw import build_adamw
from sft_cli.recipe.schema import OptimizerSection
from sft_cli.train.step import TrainStep

SLOTS = 512


@pytest.fixture(params=[FAST, FASTEST, OWN], ids=["fla", "flash_qla and liger", "own"])
def train_step(mesh: DeviceMesh, request: pytest.FixtureRequest) -> TrainStep:
    model = gpu_model(reference_model(), mesh, kernels=request.param)
    optimizer = build_adamw(model.parameters(), OptimizerSection(learning_rate=1e-3))
    return TrainStep(model, optimizer, lambda step: 1e-3, 1.0, torch.device("cuda", 0))


def batches() -> list[Batch]:
    return [
        pack_rows(random_rows(lengths, words=WORDS), list(range(len(lengths))), SLOTS).pinned()
        for lengths in ([300, 100], [64, 65, 200, 3], [500], [17] * 12)
    ]


@pytest.mark.usefixtures("no_waiting")
def test_a_step_never_waits_for_the_device(train_step: TrainStep) -> None:
    first, *others = batches()
    for step in (1, 2):  # compiles, tunes, allocates optimizer state
        train_step(step, [first, *others[:1]], 0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    # Batches that no cache of a kernel has seen.
    result = train_step(3, others[1:], 0)
    torch.cuda.set_sync_debug_mode("default")
    assert result.read().first_bad_step == 0


def test_a_step_that_is_not_finite_leaves_the_weights(train_step: TrainStep) -> None:
    weights = [own(parameter).clone() for parameter in train_step.model.parameters()]
    with torch.no_grad():
        own(train_step.model.head.norm.weight).fill_(float("nan"))
    result = train_step(1, batches()[:1], 0)
    assert result.read().first_bad_step == 1
    for name_and_parameter, before in zip(train_step.model.named_parameters(), weights, strict=True):
        name, parameter = name_and_parameter
        if name != "head.norm.weight":
            assert torch.equal(own(parameter), before), name


def test_without_sharding_it_is_the_same_step(mesh: DeviceMesh) -> None:
    """`sharding.backend: none` is autocast: `A_log`, `dt_bias` and norms stay in float32, so not bit for bit."""
    reference = reference_model()
    batch = batches()[1].to("cuda")
    totals = [
        gpu_model(reference, mesh, sharded=sharded)(
            batch.model_inputs(), batch.supervised_positions, batch.supervised_targets
        )
        for sharded in (True, False)
    ]
    assert totals[1].item() == pytest.approx(totals[0].item(), rel=1e-3)
    totals[1].backward()


def test_the_loss_falls_on_one_batch(train_step: TrainStep) -> None:
    losses = [train_step(step, batches()[:1], 0).read().loss for step in range(1, 21)]
    assert losses[-1] < 0.7 * losses[0]
