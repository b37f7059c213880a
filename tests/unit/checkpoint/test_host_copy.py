from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from sft_cli.checkpoint.host_copy import HostCopy

CPU = torch.device("cpu")


def test_it_has_the_same_numbers_in_the_same_places() -> None:
    state = {
        "model": {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(3), "none": torch.empty(0, 5)},
        "groups": [{"lr": 0.1, "params": ["a", "b"]}, (torch.ones(3, dtype=torch.bfloat16), None)],
    }
    copied = HostCopy(CPU, print).take(state)
    assert copied["groups"][0] == {"lr": 0.1, "params": ["a", "b"]}
    assert copied["groups"][0]["params"] is not state["groups"][0]["params"]
    assert copied["groups"][1][1] is None
    found = [*copied["model"].values(), copied["groups"][1][0]]
    expected = [*state["model"].values(), state["groups"][1][0]]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert torch.equal(one, other)


def test_what_changes_later_is_not_in_it() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    copied = HostCopy(CPU, print).take({"weight": weight, "turned": weight.detach().view(2, 2).t()})
    with torch.no_grad():
        weight.zero_()
    assert all((tensor == 1).all() for tensor in copied.values())
    assert not copied["weight"].requires_grad


def test_its_memory_is_used_again_and_grows_where_it_must() -> None:
    copies = HostCopy(CPU, print)
    first = copies.take({"a": torch.zeros(100), "b": torch.zeros(1)})
    again = copies.take({"a": torch.ones(100), "b": torch.ones(1)})
    assert [x.data_ptr() for x in first.values()] == [x.data_ptr() for x in again.values()]
    larger = copies.take({"a": torch.full((1000,), 2.0)})
    assert torch.equal(larger["a"], torch.full((1000,), 2.0))


@pytest.mark.usefixtures("lone_rank")
def test_a_sharded_tensor_stays_one() -> None:
    mesh = init_device_mesh("cpu", (1,))
    sharded = DTensor.from_local(torch.arange(8.0).view(4, 2), mesh, [Shard(0)])
    copied = HostCopy(CPU, print).take([sharded])[0]
    assert isinstance(copied, DTensor)
    assert copied.placements == sharded.placements
    assert copied.shape == sharded.shape
    assert torch.equal(copied.to_local(), sharded.to_local())
    assert copied.to_local().data_ptr() != sharded.to_local().data_ptr()
