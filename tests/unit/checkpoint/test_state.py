"""What is saved comes back, on as many ranks as there are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.ranks import on_ranks
from support.tensors import whole
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from sft_cli.checkpoint.commit import Target
from sft_cli.checkpoint.progress import Progress
from sft_cli.checkpoint.saver import CheckpointSaver
from sft_cli.checkpoint.state import restore_random, restore_state
from sft_cli.errors import CheckpointError


class Gated(nn.Module):
    """A sharded matrix, a plain parameter that FSDP2 leaves alone, and a buffer."""

    def __init__(self, size: int = 6) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 5)
        self.gate = nn.Parameter(torch.arange(5.0))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += 1
        return self.linear(inputs) * self.gate


def build(mesh: DeviceMesh, seed: int, size: int = 6) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Gated(size)
    fully_shard(model, mesh=mesh, ignored_params={model.gate})
    # Groups of their own: a fused optimizer takes no sharded tensors beside plain ones.
    groups = [{"params": list(model.linear.parameters())}, {"params": [model.gate]}]
    return model, torch.optim.AdamW(groups, lr=0.1, weight_decay=0.0, fused=True)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(3, 6)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def contents(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    found = dict(model.state_dict())
    for name, parameter in model.named_parameters():
        found |= {f"{name}.{key}": value for key, value in optimizer.state[parameter].items()}
    return {name: whole(tensor).clone() for name, tensor in found.items()}


def save(mesh: DeviceMesh, folder: Path) -> dict[str, Tensor]:
    model, optimizer = build(mesh, seed=0)
    for _ in range(3):
        step(model, optimizer)
    torch.manual_seed(100 + mesh.get_rank())
    saver = CheckpointSaver(
        Target(folder, 1), model, optimizer, {"cpu": torch.default_generator}, torch.device("cpu"), lambda path: None
    )
    saver.save(Progress(3, 0.5, mesh.size()))
    found = {**contents(model, optimizer), "random": torch.rand(2)}
    step(model, optimizer)  # must not reach the copy
    saver.finish()
    return found


def load(mesh: DeviceMesh, folder: Path, size: int = 6) -> tuple[dict[str, Tensor], list[str]] | str:
    model, optimizer = build(mesh, seed=1, size=size)
    checkpoint = folder / "step-00000003"
    try:
        restore_state(checkpoint, model, optimizer)
    except CheckpointError as error:
        return str(error)
    lacking = restore_random(checkpoint, {"cpu": torch.default_generator})
    return {**contents(model, optimizer), "random": torch.rand(2)}, lacking


@pytest.mark.parametrize(("ranks", "new_ranks"), [(2, 2), (2, 1), (1, 2)])
def test_weights_moments_and_random_states_come_back(tmp_path: Path, ranks: int, new_ranks: int) -> None:
    folder = tmp_path / "checkpoints"
    saved = on_ranks(ranks, save, folder)
    loaded = on_ranks(new_ranks, load, folder)
    for rank, (found, lacking) in enumerate(loaded):
        expected = saved[min(rank, ranks - 1)]
        for name in expected.keys() - {"random"}:
            assert torch.equal(found[name], expected[name]), name
        assert lacking == (["cpu"] if rank >= ranks else [])
        assert torch.equal(found["random"], expected["random"]) == (rank < ranks)
    sizes = {file.name: file.stat().st_size for file in (folder / "step-00000003").glob("*.distcp")}
    assert len(sizes) == ranks


def build_whole(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Unsharded, so all parameters are of one kind, in one group."""
    torch.manual_seed(seed)
    model = Gated()
    return model, torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0, fused=True)


def save_on_the_way(mesh: DeviceMesh, folder: Path, sharded: bool) -> dict[str, Tensor]:
    """What the step after the checkpoint makes."""
    model, optimizer = build(mesh, seed=0) if sharded else build_whole(seed=0)
    step(model, optimizer)
    with CheckpointSaver(Target(folder, 1), model, optimizer, {}, torch.device("cpu"), lambda path: None) as saver:
        saver.save(Progress(1, 0.5))
    step(model, optimizer)
    return contents(model, optimizer)


def go_on(mesh: DeviceMesh, folder: Path, sharded: bool) -> dict[str, Tensor]:
    model, optimizer = build(mesh, seed=1) if sharded else build_whole(seed=1)
    restore_state(folder / "step-00000001", model, optimizer)
    step(model, optimizer)
    return contents(model, optimizer)


@pytest.mark.parametrize("to_sharded", [True, False])
def test_parameters_may_be_grouped_in_another_way(tmp_path: Path, to_sharded: bool) -> None:
    # Sharded parameters and whole ones have groups of their own.
    folder = tmp_path / "checkpoints"
    (expected,) = on_ranks(1, save_on_the_way, folder, not to_sharded)
    (found,) = on_ranks(1, go_on, folder, to_sharded)
    for name in expected:
        assert torch.allclose(found[name], expected[name], atol=1e-6), name


@pytest.mark.usefixtures("lone_rank")
def test_gradients_to_begin_moments_with_are_there_one_at_a_time(tmp_path: Path) -> None:
    # Updates in backward may be all that makes a model fit.
    def note(*unused: object) -> None:
        gradients.append(sum(parameter.grad is not None for parameter in model.parameters()))

    model, optimizer = build_whole(seed=0)
    step(model, optimizer)
    expected = contents(model, optimizer)
    with CheckpointSaver(Target(tmp_path, 1), model, optimizer, {}, torch.device("cpu"), lambda path: None) as saver:
        saver.save(Progress(1, 0.5))
    gradients: list[int] = []
    model, optimizer = build_whole(seed=1)
    optimizer.register_step_pre_hook(note)
    restore_state(tmp_path / "step-00000001", model, optimizer)
    assert set(gradients) == {1}
    assert not any(parameter.grad is not None for parameter in model.parameters())
    found = contents(model, optimizer)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_another_model_is_told(tmp_path: Path) -> None:
    on_ranks(1, save, tmp_path / "checkpoints")
    (told,) = on_ranks(1, load, tmp_path / "checkpoints", 7)
    assert "does not fit this model and optimizer" in told
