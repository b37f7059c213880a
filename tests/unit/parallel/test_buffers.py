"""Buffers that are allocated once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models import WORDS, make_sharded_model
from support.ranks import on_ranks
from support.rows import random_rows
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from sft_cli.data.batch import pack_rows
from sft_cli.parallel.buffers import Alternating, GatherInto, ReduceInto

CPU = torch.device("cpu")


def test_buffers_take_turns() -> None:
    buffers = Alternating(2, 10)
    first, second, third = (buffers.take(size, torch.float32, CPU) for size in (10, 4, 7))
    assert [len(taken) for taken in (first, second, third)] == [10, 4, 7]
    assert third.data_ptr() == first.data_ptr() != second.data_ptr()


def test_a_buffer_is_never_too_small() -> None:
    with pytest.raises(AssertionError, match="11 elements asked of a buffer of 10"):
        Alternating(2, 10).take(11, torch.float32, CPU)


@pytest.fixture(scope="module")
def places() -> dict[str, list[Any]]:
    return on_ranks(2, three_steps)[0]


def three_steps(mesh: DeviceMesh) -> dict[str, list[Any]]:
    """Of each step: where staging, inputs and gradients lie, and how often each was asked for."""
    staging: list[int] = []
    inputs: list[int] = []
    take = Alternating.take

    def recording(self: Alternating, elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        taken = take(self, elements, dtype, device)
        (staging if self is of_staging else inputs).append(taken.data_ptr())
        return taken

    model: Any
    model, _ = make_sharded_model("qwen3_5", mesh=mesh, buffers="preallocated", prefetch=2)
    group = model.blocks[0]._get_fsdp_state()._fsdp_param_group
    assert isinstance(group._all_gather_comm, GatherInto)
    assert isinstance(group._reduce_scatter_comm, ReduceInto)
    of_staging = group._all_gather_comm._staging
    Alternating.take = recording  # type: ignore[method-assign]
    batch = pack_rows(random_rows([40, 24], words=WORDS), [0, 1], 64)
    found: dict[str, list[Any]] = {"staging": [], "inputs": [], "gradients": []}
    for _ in range(3):
        for _ in range(2):  # two micro-batches
            model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets).backward()
        layers = [p.grad for block in model.blocks for p in block.parameters() if isinstance(p, DTensor)]
        found["gradients"].append([gradient.to_local().data_ptr() for gradient in layers])
        found["staging"].append(list(staging))
        found["inputs"].append(list(inputs))
        staging.clear()
        inputs.clear()
        model.zero_grad()
    return found


@pytest.mark.parametrize(("kind", "count", "uses"), [("staging", 3, 2 * 8), ("inputs", 2, 2 * 4)])
def test_a_few_buffers_serve_all_layers_and_steps(places: Any, kind: str, count: int, uses: int) -> None:
    """Four layers are gathered twice and reduced once for each of two micro-batches."""
    assert len({place for step in places[kind] for place in step}) == count
    assert [len(step) for step in places[kind]] == [uses] * 3


def test_gradients_stay_where_they_are(places: Any) -> None:
    assert places["gradients"][0] == places["gradients"][1] == places["gradients"][2]
    assert len(set(places["gradients"][0])) == len(places["gradients"][0])


def test_gradients_that_are_used_up_in_backward_have_no_place_of_their_own() -> None:
    """Together those places would be as large as what updating in backward saves: 50 GiB of a 27B on two GPUs."""
    layer: Any = torch.nn.Linear(4, 4)
    for stay in (False, True):
        reduction = ReduceInto(Alternating(2, 100), layer, gradients_stay=stay)
        taken = []
        for _ in range(2):
            reduction.allocate([10], dtype=torch.float32, device=CPU)
            taken.append(reduction.allocate([10], dtype=torch.float32, device=CPU))
        assert (taken[0].data_ptr() == taken[1].data_ptr()) == stay
        assert (reduction._gradients is not None) == stay
