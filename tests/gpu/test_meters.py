"""What meters cost a step, paired: steps with all of them and with none take turns in one process.

Run with `-s` to see the numbers. With: marks and block times of the step, and a line of metrics.jsonl, written.
Without: the bare step, and its loss read. The driver is sampled once a second during both, by a thread of its own:
what a sample takes is printed by the next test. About 45 seconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from gpu.models import FAST, WORDS, gpu_model, reference_model
from support.rows import random_rows
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import Batch, pack_rows
from sft_cli.data.loader import StepBatches
from sft_cli.optim.adamw import build_adamw
from sft_cli.parallel.device import allocator_retries, device_uuid, peak_memory_reader
from sft_cli.recipe.schema import OptimizerSection
from sft_cli.telemetry.gpu import gpu_sampler
from sft_cli.telemetry.health import Place
from sft_cli.telemetry.meter import Meter
from sft_cli.telemetry.metrics_file import MetricsFile
from sft_cli.telemetry.nvml_device import open_device
from sft_cli.telemetry.rank_watch import RankWatch
from sft_cli.telemetry.terminal import SilentView
from sft_cli.train.moments import moments_of
from sft_cli.train.report import Gauges, Report
from sft_cli.train.step import TrainStep
from sft_cli.train.step_meters import NoMeters, StepMeters

SLOTS, MICRO_BATCHES = 8192, 4
PAIRS = 80
DEVICE = torch.device("cuda", 0)

TakeStep = Callable[[int], None]


@pytest.fixture(scope="module")
def train_step(mesh: DeviceMesh) -> TrainStep:
    model = gpu_model(reference_model(), mesh, kernels=FAST)
    optimizer = build_adamw(model.parameters(), OptimizerSection(learning_rate=1e-4))
    step = TrainStep(model, optimizer, lambda step: 1e-4, 1.0, DEVICE)
    for number in range(1, 11):  # compiles, tunes, allocates
        step(number, batches(), 0).read()
    return step


def batches() -> list[Batch]:
    lengths = [1000, 3000, 500, 2500, 1100]
    rows = random_rows(lengths, words=WORDS)
    return [pack_rows(rows, list(range(len(lengths))), SLOTS).pinned() for _ in range(MICRO_BATCHES)]


@contextmanager
def with_meters(step: TrainStep, meters: StepMeters, folder: Path) -> Iterator[TakeStep]:
    micro_batches = batches()
    with (
        MetricsFile(folder / "metrics.jsonl") as metrics,
        gpu_sampler(device_uuid(DEVICE)) as sampler,
    ):
        meter = Meter(
            flops_per_token=lambda row_tokens: 6e9 + row_tokens,
            peak_flops_per_second=989e12,
            peak_memory_gib=peak_memory_reader(DEVICE),
        )
        gauges = Gauges(
            gpu=sampler.read,
            phases=meters.read,
            allocator_retries=lambda: allocator_retries(DEVICE),
            ranks=RankWatch(Place(1, 1)),
        )
        report = Report(meter, (metrics,), SilentView(), lambda step: 1e-4, gauges)
        step.meters = meters

        def take(number: int) -> None:
            result = step(number, micro_batches, 0)
            report.count(result)
            report.log(StepBatches(number, 0.0, ()), result.read(), result.totals.digest)

        yield take
        step.meters = NoMeters()


def test_meters_cost_less_than_a_hundredth_of_a_step(train_step: TrainStep, tmp_path: Path) -> None:
    """Steps with them and without take turns, so that a host that is slower for a while is so for both."""
    meters = StepMeters(moments_of(DEVICE), train_step.model.blocks, lambda: 0)
    micro_batches = batches()
    costs, bare = [], []
    with with_meters(train_step, meters, tmp_path) as take_metered:

        def seconds(*, is_metered: bool) -> float:
            train_step.meters = meters if is_metered else NoMeters()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            if is_metered:
                take_metered(1)
            else:
                train_step(1, micro_batches, 0).read()
            torch.cuda.synchronize()
            return time.perf_counter() - begin

        for pair in range(PAIRS):
            found = {
                is_metered: seconds(is_metered=is_metered) for is_metered in ((True, False), (False, True))[pair % 2]
            }
            costs.append(found[True] - found[False])
            bare.append(found[False])
    step = statistics.median(bare)
    low, middle, high = (quartile / step for quartile in statistics.quantiles(costs, n=4))
    print(
        f"\nmeters: {middle * step * 1e6:.0f} us a step of {step * 1e3:.2f} ms ({MICRO_BATCHES} micro-batches of "
        f"{SLOTS}): {middle:.3%} (quartiles {low:.3%} to {high:.3%}, {PAIRS} pairs)"
    )
    assert middle < 0.01


def test_what_the_driver_is_asked(train_step: TrainStep) -> None:
    uuid = device_uuid(DEVICE)
    assert uuid is not None
    with open_device(uuid) as device:
        assert device is not None, "the driver's library knows the GPU by the number that CUDA gives"
        times: dict[str, list[float]] = {"sample": [], "errors": []}
        for _ in range(20):
            for name, call in (("sample", device.sample), ("errors", device.errors)):
                begin = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - begin)
            train_step(1, batches()[:1], 0).read()
        begin = time.perf_counter()
        while time.perf_counter() - begin < 1.5:  # activity is that of the time since the sample before
            train_step(1, batches()[:1], 0).read()
        sample = device.sample()
        print(
            f"\nNVML: a sample takes {statistics.median(times['sample']) * 1e3:.2f} ms, counters of errors "
            f"{statistics.median(times['errors']) * 1e3:.2f} ms\n{sample}\n{device.errors()}\n"
            f"power limits {device.power_limits_w()}"
        )
        assert sample.temperature_c is not None
        assert 10 < sample.temperature_c < 110
        assert sample.power_w is not None
        assert sample.power_w > 10
        assert sample.sm_clock_mhz is not None
        if torch.cuda.get_device_capability(DEVICE) >= (9, 0):
            assert sample.activity is not None
            assert sample.activity.sm is not None
            assert 0 < sample.activity.sm <= 1


def test_phases_add_up_to_the_step(train_step: TrainStep) -> None:
    """On the device's own clock, over several micro-batches, with nothing else in the step."""
    meters = StepMeters(moments_of(DEVICE), train_step.model.blocks, lambda: 0)
    train_step.meters = meters
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    steps = 10
    begin.record()
    for number in range(1, steps + 1):
        train_step(number, batches(), 0)
    end.record()
    end.synchronize()
    train_step.meters = NoMeters()
    phases = meters.read()
    assert phases is not None
    whole = begin.elapsed_time(end) / 1e3 / steps
    parts = phases.forward + phases.backward + phases.optimizer
    print(f"\n{phases} of {whole:.4f} s a step; blocks {meters.own().block_time / 1e3:.1f} ns a slot")
    assert parts <= whole * 1.01
    assert phases.backward > phases.forward > 0
    assert phases.optimizer > 0
    assert meters.own().block_time > 0


@pytest.mark.usefixtures("no_waiting")
def test_meters_never_wait_for_the_device(train_step: TrainStep) -> None:
    meters = StepMeters(moments_of(DEVICE), train_step.model.blocks, lambda: 0)
    train_step.meters = meters
    own = batches()
    train_step(1, own, 0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    for number in range(2, 6):
        train_step(number, own, 0)
        meters.read()
    torch.cuda.set_sync_debug_mode("default")
    train_step.meters = NoMeters()
