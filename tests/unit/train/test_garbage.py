"""Python's collector while steps are taken."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from parity.test_ranks import packs
from support.models import make_sharded_model
from torch.distributed.device_mesh import init_device_mesh

from sft_cli.train.evaluate import evaluate
from sft_cli.train.garbage import STEPS_BETWEEN_COLLECTIONS, collect_after, held_still


class Node:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_what_is_there_is_not_looked_at_and_what_comes_is_collected_between_steps() -> None:
    before = Node()
    was_there = weakref.ref(before)
    with held_still():
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 10_000
        came = weakref.ref(Node())
        del before
        collect_after(STEPS_BETWEEN_COLLECTIONS - 1)
        assert came() is not None
        collect_after(STEPS_BETWEEN_COLLECTIONS)
        assert came() is None
        assert was_there() is not None
    gc.collect()
    assert was_there() is None


def test_an_error_lets_it_go() -> None:
    with pytest.raises(KeyError), held_still():
        raise KeyError


def test_where_it_is_not_held_nothing_is_collected() -> None:
    gc.disable()
    try:
        came = weakref.ref(Node())
    finally:
        gc.enable()
    collect_after(STEPS_BETWEEN_COLLECTIONS)
    assert came() is not None
    gc.collect()


MODES: list[dict[str, Any]] = [
    {},
    {"checkpointing": "full", "offload": True},
    {"checkpointing": "full", "checkpointed_layers": 1, "others": "selective"},
]


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("setting", MODES, ids=str)
@pytest.mark.parametrize("family", ["qwen3_5", "llama"])
@pytest.mark.parametrize("is_sharded", [False, True])
def test_no_tensor_of_a_step_or_an_evaluation_waits_for_it(
    is_sharded: bool, family: str, setting: dict[str, Any]
) -> None:
    """Or the memory of twenty steps' tensors, or of a whole evaluation's, would be in use at once. A node of a graph
    may hold tensors that no object of Python stands for."""
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("shard",)) if is_sharded else None
    model, reduction = make_sharded_model(family, mesh=mesh, **setting)
    with held_still():
        for batch in packs():
            model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets).backward()
        reduction.finish()
        model.zero_grad()
        evaluate(model, packs(), torch.device("cpu"))
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not [
            found for found in gc.garbage if isinstance(found, torch.Tensor) or hasattr(found, "next_functions")
        ]
