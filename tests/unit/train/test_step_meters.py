"""Where a step's time goes, on a device whose clock is moved by hand and which is late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sft_cli.parallel.activation_checkpointing import checkpoint_layers
from sft_cli.plan.profiling import BACKWARD, FORWARD, OPTIMIZER
from sft_cli.recipe.schema import ActivationCheckpointingSection
from sft_cli.telemetry.meter import PhaseSeconds
from sft_cli.train.moments import HostMoments, Moments
from sft_cli.train.step_meters import NoMeters, Own, StepMeters


class Device(Moments):
    """Its work takes as long as it is told; it has come to where `done_until` says."""

    def __init__(self) -> None:
        self.at = 0.0
        self.done_until = 0.0
        self.made = self.in_use = 0

    def work(self, seconds: float) -> None:
        self.at += seconds

    def catch_up(self) -> None:
        self.done_until = self.at

    def now(self) -> float:
        self.made += 1
        self.in_use += 1
        return self.at

    def is_past(self, moment: float) -> bool:
        return moment <= self.done_until

    def seconds(self, begin: float, end: float) -> float:
        assert self.is_past(end), "events that are not past can't be compared"
        return end - begin

    def forget(self, moment: float) -> None:
        self.in_use -= 1


@pytest.fixture
def device() -> Device:
    return Device()


def take_step(
    meters: StepMeters, device: Device, micro_batches: int = 2, model: Callable[[], Any] | None = None
) -> Own:
    """Forward 1 s, backward 2 s a micro-batch, then 0.5 s of optimizer."""
    own = meters.own()
    meters.begin(slots=100)
    for _ in range(micro_batches):
        meters.mark(FORWARD)
        if model is not None:
            model()
        device.work(1.0)
        meters.mark(BACKWARD)
        device.work(2.0)
    meters.mark(OPTIMIZER)
    device.work(0.5)
    meters.end()
    return own


def test_phases_are_summed_over_micro_batches_and_averaged_over_steps(device: Device) -> None:
    meters = StepMeters(device)
    take_step(meters, device, micro_batches=3)
    take_step(meters, device, micro_batches=1)
    device.catch_up()
    assert meters.read() == PhaseSeconds(forward=2.0, backward=4.0, optimizer=0.5)
    assert meters.read() is None, "no step since"


def test_a_step_that_the_device_has_not_done_is_read_later(device: Device) -> None:
    meters = StepMeters(device)
    take_step(meters, device)
    device.catch_up()
    take_step(meters, device, micro_batches=7)
    assert meters.read() == PhaseSeconds(2.0, 4.0, 0.5), "the first one alone"
    assert meters.read() is None
    device.catch_up()
    assert meters.read() == PhaseSeconds(7.0, 14.0, 0.5)


def test_nothing_piles_up_between_lines_of_the_log(device: Device) -> None:
    meters = StepMeters(device)
    for _ in range(100):
        take_step(meters, device)
        device.catch_up()
    assert device.in_use == 2 * 2 + 2, "the marks of one step"
    assert meters.read() == PhaseSeconds(2.0, 4.0, 0.5)
    assert device.in_use == 0


def test_a_rehearsal_is_no_step(device: Device) -> None:
    meters = StepMeters(device)
    meters.mark(FORWARD)
    meters.mark(BACKWARD)
    device.catch_up()
    assert meters.read() is None
    assert device.made == 0


def test_without_meters_nothing_is_asked(device: Device) -> None:
    meters = NoMeters()
    assert take_step(meters, device) == Own()
    assert meters.read() is None


class Block(nn.Module):
    def __init__(self, device: Device, seconds: float) -> None:
        super().__init__()
        self.device, self.seconds = device, seconds
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.device.work(self.seconds)
        return x * self.weight


def test_blocks_in_the_middle_are_timed_in_the_first_micro_batch(device: Device) -> None:
    blocks = [Block(device, 10.0 if index in (0, 11) else 0.25) for index in range(12)]
    meters = StepMeters(device, blocks)

    def forward() -> None:
        x = torch.ones(1)
        for block in blocks:
            device.work(5.0)  # what is between blocks, such as waiting for weights
            x = block(x)

    assert take_step(meters, device, model=forward) == Own(), "nothing is known before the first step is done"
    assert take_step(meters, device, model=forward) == Own(), "nor while the device is at it"
    device.catch_up()
    assert take_step(meters, device, model=forward) == Own(block_time=round(8 * 0.25 / 100 * 1e12))


def test_what_runs_again_in_backward_is_not_timed(device: Device) -> None:
    blocks = [Block(device, 0.25), Block(device, 0.25)]
    checkpoint_layers(blocks, ActivationCheckpointingSection(mode="full"))
    meters = StepMeters(device, blocks)
    meters.begin(slots=1)
    meters.mark(FORWARD)
    total = blocks[1](blocks[0](torch.ones(1))).sum()
    meters.mark(BACKWARD)
    total.backward()
    meters.mark(OPTIMIZER)
    meters.end()
    device.catch_up()
    assert meters.own().block_time == round(0.5e12)


def test_an_evaluation_is_not_timed(device: Device) -> None:
    block = Block(device, 1.0)
    meters = StepMeters(device, [block])
    block(torch.ones(1))
    assert device.made == 0
    take_step(meters, device)
    block(torch.ones(1))
    device.catch_up()
    assert meters.own() == Own(block_time=0)


@pytest.mark.parametrize("in_place", [True, False])
def test_compiled_blocks_are_timed_too(device: Device, in_place: bool) -> None:
    block = nn.Linear(4, 4)
    if in_place:
        block.compile(backend="eager", fullgraph=True)
    else:
        block.forward = torch.compile(block.forward, backend="eager", fullgraph=True)  # type: ignore[method-assign]
    meters = StepMeters(device, [block])
    for _ in range(2):
        take_step(meters, device, model=lambda: block(torch.ones(1, 4)))
    assert device.made == 2 * (2 * 2 + 2) + 2 * 2


def test_the_health_of_this_ranks_gpu_goes_along(device: Device) -> None:
    bits = iter([0, 0x40])
    meters = StepMeters(device, health=lambda: next(bits))
    assert [meters.own().health, meters.own().health] == [0, 0x40]


def test_a_cpu_is_never_late() -> None:
    moments = HostMoments()
    begin = moments.now()
    assert moments.is_past(begin)
    assert moments.seconds(begin, moments.now()) >= 0
