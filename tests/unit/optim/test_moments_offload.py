"""Moments that wait in host memory: the same numbers as moments that stay, whatever the order of updates."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest
import torch
from support.fake_streams import Gpu
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from sft_cli.optim.adamw import build_adamw
from sft_cli.optim.host_memory import HostMemory
from sft_cli.optim.low_precision import LowPrecisionAdamW
from sft_cli.optim.moments_offload import MomentsOffload, Together, moments
from sft_cli.plan import moments_offload
from sft_cli.recipe.schema import OptimizerSection

CPU = torch.device("cpu")
LAYER = 4
"""Parameters of one."""
COUNT = 3 * moments_offload.SLOTS * LAYER


@pytest.fixture(autouse=True)
def small_tensors_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments_offload, "FEWEST_NUMBERS", 1024)


def make_parameters() -> list[nn.Parameter]:
    """Of different sizes; the last are too small to wait, or have float32 moments."""
    generator = torch.Generator().manual_seed(0)
    shapes = [*((8 + 4 * index, 256) for index in range(COUNT)), (2, 256), (300,)]
    return [nn.Parameter(torch.randn(shape, generator=generator).bfloat16()) for shape in shapes]


def make_optimizer(parameters: list[nn.Parameter], *, offload: bool) -> LowPrecisionAdamW:
    options: dict[str, Any] = {"name": "adamw_8bit", "in_backward": True, "stochastic_rounding": True}
    section = OptimizerSection(learning_rate=1e-2, offload=offload, **options)
    waiting_in = HostMemory(CPU, 0) if offload else None
    layers = [parameters[first : first + LAYER] for first in range(0, COUNT, LAYER)]
    optimizer = build_adamw(parameters, section, waiting_in=waiting_in, layers=layers)
    assert isinstance(optimizer, LowPrecisionAdamW)
    return optimizer


def take_steps(optimizer: LowPrecisionAdamW, parameters: list[nn.Parameter], steps: range, orders: str) -> None:
    """Updates one parameter at a time, as backward does."""
    groups = optimizer.param_groups
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        gradients = [torch.randn(p.shape, generator=generator).bfloat16() for p in parameters]
        pairs = list(zip(parameters, gradients, strict=True))[::-1]
        if orders == "changing":
            random.Random(step).shuffle(pairs)
        if orders == "some without a gradient":
            pairs = [pair for index, pair in enumerate(pairs) if (index + step) % 3]
        for parameter, gradient in pairs:
            parameter.grad = gradient
            group = next(group for group in groups if any(parameter is one for one in group["params"]))
            optimizer.param_groups = [{**group, "params": [parameter]}]
            optimizer.step()
            parameter.grad = None
        optimizer.param_groups = groups


def numbers(optimizer: LowPrecisionAdamW, parameters: list[nn.Parameter]) -> list[Tensor]:
    states = optimizer.state_dict()["state"]
    return [*parameters, *(states[number][name] for number in states for name in sorted(states[number]))]


@pytest.mark.parametrize("orders", ["as backward", "changing", "some without a gradient"])
def test_the_same_numbers(orders: str) -> None:
    found = {}
    for offload in (False, True):
        parameters = make_parameters()
        optimizer = make_optimizer(parameters, offload=offload)
        take_steps(optimizer, parameters, range(4), orders)
        found[offload] = numbers(optimizer, parameters)
    assert all(torch.equal(here, there) for here, there in zip(found[False], found[True], strict=True))


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_a_state_goes_from_one_kind_to_the_other(before: bool, after: bool) -> None:
    parameters = make_parameters()
    first = make_optimizer(parameters, offload=before)
    take_steps(first, parameters, range(3), "as backward")
    state = deepcopy(first.state_dict())
    second = make_optimizer(parameters, offload=after)
    second.load_state_dict(state)
    take_steps(second, parameters, range(3, 5), "as backward")

    unbroken = make_parameters()
    straight = make_optimizer(unbroken, offload=False)
    take_steps(straight, unbroken, range(5), "as backward")
    pairs = zip(numbers(second, parameters), numbers(straight, unbroken), strict=True)
    assert all(torch.equal(here, there) for here, there in pairs)


def test_what_was_fetched_before_a_load_is_not_used() -> None:
    """The optimizer itself is loaded into between two steps, when moments of the next one are there already."""
    parameters = make_parameters()
    optimizer = make_optimizer(parameters, offload=True)
    take_steps(optimizer, parameters, range(2), "as backward")
    state, weights = deepcopy(optimizer.state_dict()), [p.detach().clone() for p in parameters]
    take_steps(optimizer, parameters, range(2, 4), "as backward")
    expected = [x.clone() for x in numbers(optimizer, parameters)]
    optimizer.load_state_dict(state)
    for parameter, weight in zip(parameters, weights, strict=True):
        parameter.data.copy_(weight)
    take_steps(optimizer, parameters, range(2, 4), "as backward")
    assert all(torch.equal(here, there) for here, there in zip(numbers(optimizer, parameters), expected, strict=True))


def test_moments_that_wait_are_never_on_the_device() -> None:
    """Or a model that fits because its moments wait would not fit while its optimizer is made."""

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = function(*args, **(kwargs or {}))
            if function is torch.ops.aten.zeros_like.default and made.dtype in (torch.int8, torch.uint8):
                sizes.append(made.numel())
            return made

    sizes: list[int] = []
    parameters = make_parameters()
    with Sizes():
        make_optimizer(parameters, offload=True)
    stay = [2 * 256]  # both moments of the one matrix that is too small
    assert sizes == [number for number in stay for _ in range(2)]
    sizes.clear()
    with Sizes():
        make_optimizer(parameters, offload=False)
    assert len(sizes) == 2 * (COUNT + 1)


def test_moments_that_wait_stay_in_their_memory_when_a_state_is_loaded() -> None:
    class Casts(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.ops.aten._to_copy.default:
                sizes.append(args[0].numel())
            return function(*args, **(kwargs or {}))

    sizes: list[int] = []
    optimizer = make_optimizer(make_parameters(), offload=True)
    state = optimizer.state_dict()
    with Casts():
        optimizer.load_state_dict(state)
    assert not sizes
    before, after = (list(map(list, one["state"].values())) for one in (state, optimizer.state_dict()))
    assert after == before  # the order of names, which is that of a checkpoint's files


def test_which_tensors_wait() -> None:
    optimizer = make_optimizer(make_parameters(), offload=True)
    assert len(optimizer._waiting()) == COUNT


def test_moments_of_a_layer_come_in_one_copy_and_go_in_one() -> None:
    parameters = make_parameters()
    optimizer = make_optimizer(parameters, offload=True)
    take_steps(optimizer, parameters, range(1), "as backward")
    offload = optimizer._offload
    assert offload is not None
    offload.settle()
    offload.forget()
    offload._after.clear()  # nothing is sent for ahead
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for parameter in parameters[:LAYER]:
            offload.fetch(parameter)
        offload.settle()
    assert sum(event.name == "aten::copy_" for event in profiled.events()) == 2


def test_the_next_layer_is_there_before_it_is_asked_for() -> None:
    parameters = make_parameters()
    optimizer = make_optimizer(parameters, offload=True)
    take_steps(optimizer, parameters, range(2), "as backward")
    offload = optimizer._offload
    assert offload is not None
    layers = [parameters[first : first + LAYER] for first in range(0, COUNT, LAYER)]
    assert offload._used is not None
    assert set(offload._used.layer.places) == set(layers[0])
    assert [set(layer.places) for layer in offload._coming] == [set(layers[-1])], "the next backward begins there"


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("orders", ["as backward", "changing"])
def test_no_copy_overtakes_another_or_an_update(seed: int, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On streams that get on in any order that is allowed. An update adds one to a moment; those of two layers are
    longer than those of the others."""
    gpu, order = Gpu(seed), random.Random(seed)
    monkeypatch.setattr(torch.cuda, "current_stream", gpu.current_stream)
    monkeypatch.setattr(torch.cuda, "stream", gpu.stream)
    copied = MomentsOffload._copy
    monkeypatch.setattr(
        MomentsOffload, "_copy", staticmethod(lambda *args, **how: gpu.current.put(lambda: copied(*args, **how)))
    )
    layers = [
        Together.of([nn.Parameter(torch.empty(size)) for _ in range(3)], [2 * size] * 3, torch.zeros(6 * size).byte())
        for size in (2, 5, 2, 2, 5, 2)
    ]
    offload = MomentsOffload(layers, CPU)
    offload._inward, offload._outward = gpu.new_stream(), gpu.new_stream()  # type: ignore[assignment]
    for step in range(1, 6):
        turns = layers[::-1]
        if orders == "changing":
            order.shuffle(turns)
        for parameter in (parameter for layer in turns for parameter in layer.places):
            first, second = offload.fetch(parameter)
            gpu.current.put(lambda first=first, second=second: (first.add_(1), second.add_(2)))
            gpu.get_on()
        if step == 3:
            offload.settle()
            assert all(torch.equal(layer.host.unique().long(), torch.tensor([3, 6])) for layer in layers)
            for layer in layers:
                layer.host.add_(10)  # as loading a state does
            offload.forget()
    offload.settle()
    for layer in layers:
        for block in layer.hosts().values():
            first, second = moments(block)
            assert first.unique().tolist() == [15]
            assert second.unique().tolist() == [20]
