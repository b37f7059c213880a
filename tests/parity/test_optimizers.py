"""Every optimizer over ranks: the numbers don't depend on how a tensor is sharded, on when the update is made, or on a
checkpoint in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import WORDS, make_model, make_sharded_model
from support.ranks import on_ranks
from support.rows import random_rows
from support.tensors import whole
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from sft_cli.checkpoint.commit import Target
from sft_cli.checkpoint.progress import Progress
from sft_cli.checkpoint.saver import CheckpointSaver
from sft_cli.checkpoint.state import restore_state
from sft_cli.data.batch import Batch, pack_rows
from sft_cli.optim.adamw import build_adamw
from sft_cli.optim.clipping import clip_gradients
from sft_cli.optim.host_memory import HostMemory
from sft_cli.optim.in_backward import InBackward
from sft_cli.plan import moments_offload
from sft_cli.recipe.schema import OptimizerSection
from sft_cli.train.step import TrainStep

CPU = torch.device("cpu")
RATE = 1e-3
OPTIMIZERS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "adamw": (torch.float32, {}),
    "8bit": (torch.float32, {"name": "adamw_8bit"}),
    "bfloat16": (torch.bfloat16, {"stochastic_rounding": True}),
    "8bit bfloat16": (torch.bfloat16, {"name": "adamw_8bit", "stochastic_rounding": True}),
}
WAITING = "8bit bfloat16, waiting in host memory"
SECTIONS = {**OPTIMIZERS, WAITING: (torch.bfloat16, {**OPTIMIZERS["8bit bfloat16"][1], "offload": True})}


def make_layers(dtype: torch.dtype, mesh: DeviceMesh | None = None) -> nn.Module:
    """Rows that two ranks share unevenly, and blocks that no even cut of the numbers would respect."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(768, 33), nn.Linear(64, 5), nn.Linear(10, 7)).to(dtype)
    return layers if mesh is None else fully_shard(layers, mesh=mesh)


def take_steps(layers: nn.Module, optimizer: Any, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in layers.parameters():
            gradient = torch.randn(parameter.shape, generator=generator).mul(step).to(parameter.dtype)
            if isinstance(parameter, DTensor):
                gradient = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)
            parameter.grad = gradient
        optimizer.found_inf = torch.zeros(())
        optimizer.step()
        optimizer.zero_grad()


def make_optimizer(name: str, module: nn.Module) -> Any:
    section = OptimizerSection(learning_rate=RATE, weight_decay=0.1, **SECTIONS[name][1])
    waiting_in = HostMemory(CPU, 1 << 16) if section.offload else None
    return build_adamw(module.parameters(), section, seed=3, waiting_in=waiting_in)


def weights(module: nn.Module) -> list[Tensor]:
    return [whole(parameter) for parameter in module.parameters()]


def packs(count: int) -> list[Batch]:
    rows = random_rows([40, 24] * count, words=WORDS)
    return [pack_rows(rows, [2 * index, 2 * index + 1], 64) for index in range(count)]


def experiments(mesh: DeviceMesh, folder: Path) -> dict[str, Any]:
    moments_offload.FEWEST_NUMBERS = 64  # in a process of its own
    return {
        name: {
            "sharded": sharded(mesh, name),
            "resumed": resumed(mesh, name, folder / name),
            "ordinary": trained(mesh, name, in_backward=False),
            "in backward": trained(mesh, name, in_backward=True),
        }
        for name in OPTIMIZERS
    } | {"spoilt": spoilt(mesh), "replicated": replicated(mesh), WAITING: resumed(mesh, WAITING, folder / WAITING)}


def sharded(mesh: DeviceMesh, name: str) -> list[Tensor]:
    layers = make_layers(OPTIMIZERS[name][0], mesh)
    take_steps(layers, make_optimizer(name, layers), range(1, 6))
    return weights(layers)


def resumed(mesh: DeviceMesh, name: str, folder: Path) -> list[Tensor]:
    """The same five steps, with a checkpoint after the third, and all made anew."""
    layers = make_layers(SECTIONS[name][0], mesh)
    optimizer = make_optimizer(name, layers)
    take_steps(layers, optimizer, range(1, 4))
    with CheckpointSaver(Target(folder, keep=1), layers, optimizer, {}, CPU, lambda path: None) as saver:
        saver.save(Progress(3, 0.5))
    return go_on(make_layers(SECTIONS[name][0], mesh), name, folder / "step-00000003")


def go_on(layers: nn.Module, name: str, path: Path) -> list[Tensor]:
    optimizer = make_optimizer(name, layers)
    restore_state(path, layers, optimizer)
    take_steps(layers, optimizer, range(4, 6))
    return weights(layers)


def trained(mesh: DeviceMesh, name: str, *, in_backward: bool) -> dict[str, Any]:
    """Three steps of a whole model after a rehearsal."""
    model, reduction = make_sharded_model("qwen3_5", mesh=mesh, master_dtype=OPTIMIZERS[name][0])
    optimizer = make_optimizer(name, model)
    updates = InBackward(optimizer, reduction.whole()) if in_backward else None
    step = TrainStep(model, optimizer, lambda step: RATE * step, None, CPU, reduction, updates)
    before = weights(model)
    step.rehearse(packs(1)[0])
    unchanged = all(map(torch.equal, before, weights(model)))
    gradients_left: list[int] = []
    if in_backward:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda _: gradients_left.append(
                    len([n for n, p in model.named_parameters() if p.grad is not None and isinstance(p, DTensor)])
                )
            )
    results = [step(number, packs(6)[2 * number - mesh.get_local_rank() - 1 :][:1], 0) for number in (1, 2, 3)]
    return {
        "rehearsal changed nothing": unchanged,
        "most gradients": max(gradients_left, default=None),
        "weights": weights(model),
        "norms": [result.grad_norm.item() for result in results],
        "losses": [result.loss.item() for result in results],
    }


def spoilt(mesh: DeviceMesh) -> dict[str, Any]:
    """A step whose gradient is not finite for one parameter."""
    model = make_model("llama", mesh=mesh)
    optimizer = make_optimizer("8bit", model)
    step = TrainStep(model, optimizer, lambda step: RATE, None, CPU, in_backward=InBackward(optimizer))
    before = weights(model)

    def spoil(parameter: nn.Parameter) -> None:
        parameter.grad.to_local().fill_(float("nan"))

    up = model.blocks[0].mlp.up_proj.weight
    # Before the update's own hook.
    hooks = dict(up._post_accumulate_grad_hooks)
    up._post_accumulate_grad_hooks.clear()
    up.register_post_accumulate_grad_hook(spoil)
    up._post_accumulate_grad_hooks.update(hooks)
    result = step(7, packs(1), 0)
    names = [name for name, _ in model.named_parameters()]
    changed = {name for name, old, new in zip(names, before, weights(model), strict=True) if not torch.equal(old, new)}
    return {
        "first bad step": result.read().first_bad_step,
        "unchanged": sorted(set(names) - changed),
        "finite": all(weight.isfinite().all() for weight in weights(model)),
    }


def replicated(mesh: DeviceMesh) -> dict[str, Any]:
    """Hybrid sharding: both ranks hold every number. Each has its own copy's update to make, and draws to take."""
    hybrid = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shard"))
    layer, on_its_own = (nn.Linear(768, 33).bfloat16() for _ in range(2))
    with torch.no_grad():
        for number, pair in enumerate(zip(layer.parameters(), on_its_own.parameters(), strict=True)):
            for parameter in pair:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    fully_shard(layer, mesh=hybrid)
    norms = []
    for module in (layer, on_its_own):
        optimizer = make_optimizer("8bit bfloat16", module)
        if module is layer:
            in_backward = InBackward(optimizer)
        inputs = torch.randn(8, 768, generator=torch.Generator().manual_seed(9)).bfloat16()
        module(inputs).square().sum().backward()
        if module is layer:
            norms.append(in_backward.grad_norm().item())
        else:
            norms.append(clip_gradients(list(module.parameters()), None).item())
            optimizer.step()
    return {"weights": weights(layer), "expected": weights(on_its_own), "norms": norms}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    return on_ranks(2, experiments, folder)


@pytest.mark.parametrize("name", OPTIMIZERS)
class TestEach:
    def test_a_sharded_tensor_is_updated_as_a_whole_one(self, ranks: Any, name: str) -> None:
        """Bit for bit: blocks lie within rows, and a number's draw belongs to its place."""
        layers = make_layers(OPTIMIZERS[name][0])
        take_steps(layers, make_optimizer(name, layers), range(1, 6))
        for rank in ranks:
            for found, expected in zip(rank[name]["sharded"], weights(layers), strict=True):
                assert torch.equal(found, expected)

    def test_a_checkpoint_in_between_changes_nothing(self, ranks: Any, name: str) -> None:
        for rank in ranks:
            for found, expected in zip(rank[name]["resumed"], rank[name]["sharded"], strict=True):
                assert torch.equal(found, expected)

    @pytest.mark.usefixtures("lone_rank")
    def test_nor_does_going_on_with_another_number_of_ranks(self, ranks: Any, name: str, folder: Path) -> None:
        found = go_on(make_layers(OPTIMIZERS[name][0]), name, folder / name / "step-00000003")
        for one, expected in zip(found, ranks[0][name]["sharded"], strict=True):
            assert torch.equal(one, expected)

    def test_in_backward_makes_exactly_the_weights_of_the_ordinary_step(self, ranks: Any, name: str) -> None:
        for rank in ranks:
            ordinary, in_backward = rank[name]["ordinary"], rank[name]["in backward"]
            assert in_backward["losses"] == ordinary["losses"]
            assert in_backward["norms"] == pytest.approx(ordinary["norms"], rel=1e-5)
            for found, expected in zip(in_backward["weights"], ordinary["weights"], strict=True):
                assert torch.equal(found, expected)

    def test_in_backward_holds_no_gradient_longer_than_its_update(self, ranks: Any, name: str) -> None:
        assert {rank[name]["in backward"]["most gradients"] for rank in ranks} == {0}

    def test_a_rehearsal_changes_nothing(self, ranks: Any, name: str) -> None:
        for rank in ranks:
            assert rank[name]["ordinary"]["rehearsal changed nothing"]
            assert rank[name]["in backward"]["rehearsal changed nothing"]


def test_moments_that_wait_on_the_host_change_nothing_with_a_checkpoint_in_between(ranks: Any) -> None:
    for rank in ranks:
        for found, expected in zip(rank[WAITING], rank["8bit bfloat16"]["sharded"], strict=True):
            assert torch.equal(found, expected)


def test_replicas_of_a_shard_stay_equal_and_count_once(ranks: Any) -> None:
    for rank in ranks:
        replicated = rank["replicated"]
        assert replicated["norms"][0] == pytest.approx(replicated["norms"][1], rel=1e-5)
        for found, expected in zip(replicated["weights"], replicated["expected"], strict=True):
            assert torch.equal(found, expected)


def test_in_backward_a_bad_gradient_is_found_after_others_were_used(ranks: Any) -> None:
    for rank in ranks:
        assert rank["spoilt"] == {
            "first bad step": 7,
            "unchanged": ["decoder.layers.0.mlp.up_proj.weight"],
            "finite": True,
        }
