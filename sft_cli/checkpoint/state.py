"""What a checkpoint's tensors are: weights, moments, random states; and how they come back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

from sft_cli.checkpoint.refusals import first_line, reasons
from sft_cli.errors import CheckpointError

_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: neighbouring seeds have no ranks in common."""

Generators = Mapping[str, torch.Generator]
"""Every source of random numbers that training draws from on this rank, by a name that stays the same."""


def training_generators(device: torch.device) -> dict[str, torch.Generator]:
    """torch's own of the host, and of this rank's GPU."""
    found = {"cpu": torch.default_generator}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.default_generators[torch.cuda.current_device()]
    return found


def seed_generators(generators: Generators, seed: int) -> None:
    """As every run of this seed begins, each rank with numbers of its own: no dropout that is the same everywhere."""
    for generator in generators.values():
        generator.manual_seed((seed * _GOLDEN + dist.get_rank()) % 2**63)


def training_state(model: nn.Module, optimizer: torch.optim.Optimizer, generators: Generators) -> dict[str, Any]:
    """The tensors themselves, not copies: a sharded one is a DTensor, of which each rank writes its shard; a plain one
    is the same on all ranks and written by one; random states have the rank in their name."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    random = {f"{name}-{dist.get_rank()}": generator.get_state() for name, generator in generators.items()}
    return {"model": model_state, "optimizer": optimizer_state, "random": random}


def local_tensors(state: Any) -> Iterator[Tensor]:
    """This rank's share of a nested state, in its order."""
    if isinstance(state, DTensor):
        yield state.to_local()
    elif isinstance(state, Tensor):
        yield state
    else:
        parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
        for part in parts:
            yield from local_tensors(part)


def local_bytes(state: Any) -> int:
    """Of those tensors."""
    return sum(tensor.nbytes for tensor in local_tensors(state))


def restore_state(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Weights and optimizer as they were, whatever the number of ranks then and now. Called on every rank.

    The optimizer's groups and their options stay as they are: a recipe that goes on has those that it had, each step
    sets its rate, and what is grouped with what depends on how it is sharded.

    Raises:
        CheckpointError: its tensors are not those of this model and optimizer.
    """
    _make_moments(optimizer)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    groups = optimizer_state.pop("param_groups")
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
    _load(checkpoint, state)
    optimizer_state = {**state["optimizer"], "param_groups": groups}
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=optimizer_state)


def restore_random(checkpoint: Path, generators: Generators) -> list[str]:
    """Random states of this rank; returns the names of those that the checkpoint lacks, as a rank that is new does."""
    metadata: Metadata = dcp.FileSystemReader(checkpoint).read_metadata()
    names = {f"{name}-{dist.get_rank()}": name for name in generators}
    present = {key for key in names if f"random.{key}" in metadata.state_dict_metadata}
    state = {"random": {key: generators[names[key]].get_state() for key in sorted(present)}}
    _load(checkpoint, state)
    for key in present:
        generators[names[key]].set_state(state["random"][key])
    return sorted(names[key] for key in names.keys() - present)


def _make_moments(optimizer: torch.optim.Optimizer) -> None:
    """Something to load into, where an optimizer makes its moments in its first step: one with zero gradients and rate.

    A parameter at a time: torch's helper makes the gradients of all, for which there may be no room where backward
    itself updates.
    """
    if optimizer.state:
        return
    groups = optimizer.param_groups
    for group in groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
            optimizer.param_groups = [{**group, "params": [parameter], "lr": 0.0}]
            optimizer.step()
            parameter.grad = None
    optimizer.param_groups = groups


def _load(checkpoint: Path, state: dict[str, Any]) -> None:
    try:
        dcp.load(state, checkpoint_id=checkpoint)
    except CheckpointException as error:
        raise CheckpointError(
            f"the checkpoint does not fit this model and optimizer: {first_line(reasons(error)[0])}",
            where=str(checkpoint),
            fix="Resume with the recipe that wrote it: recipe.yaml of its run.",
        ) from error
