"""What is gathered when. Two ranks, because one gathers nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from support.models import WORDS, make_model
from support.ranks import on_ranks
from support.rows import random_rows
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather

from sft_cli.data.batch import pack_rows

LAYERS = 4


class Recorder(DefaultAllGather):
    def __init__(self, events: list[str], name: str) -> None:
        self.events, self.name = events, name

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.events.append(f"gather {self.name}")
        return super().__call__(*arguments, **options)


@pytest.fixture(scope="module")
def events() -> dict[int, list[str]]:
    """By depth of prefetch: gathers and the beginnings of layers, in forward and backward, on the first rank."""
    return on_ranks(2, every_depth)[0]


def every_depth(mesh: DeviceMesh) -> dict[int, list[str]]:
    return {depth: one_pass(mesh, depth) for depth in (0, 1, 2)}


def one_pass(mesh: DeviceMesh, prefetch: int) -> list[str]:
    model: Any = make_model("qwen3_5", mesh=mesh, prefetch=prefetch)
    events: list[str] = []
    parts = {"embedding": model.embedding, "head": model.head, **{str(i): b for i, b in enumerate(model.blocks)}}
    for name, part in parts.items():
        part.set_custom_all_gather(Recorder(events, name))
        # After FSDP2's own hooks, so that what a layer gathers ahead stands before its beginning.
        part.register_forward_pre_hook(partial(lambda name, *_: events.append(f"begin {name}"), name))
    batch = pack_rows(random_rows([40, 24], words=WORDS), [0, 1], 64)
    loss = model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets)
    events.append("backward")
    loss.backward()
    torch.distributed.barrier()
    return events


def gathered_before(events: list[str], moment: str) -> set[str]:
    return {event.removeprefix("gather ") for event in events[: events.index(moment)] if event.startswith("gather ")}


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_forward_gathers_so_many_layers_ahead(events: dict[int, list[str]], depth: int) -> None:
    order = ["embedding", *map(str, range(LAYERS)), "head"]
    for index, name in enumerate(order):
        assert gathered_before(events[depth], f"begin {name}") == set(order[: index + 1 + depth])


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_backward_gathers_each_layer_once_more_and_no_embedding(events: dict[int, list[str]], depth: int) -> None:
    backward = events[depth][events[depth].index("backward") + 1 :]
    assert backward == [f"gather {layer}" for layer in reversed(range(LAYERS))]
