"""Samples of a GPU become readings and health, from a device made up here."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from sft_cli.telemetry.gpm import Activity
from sft_cli.telemetry.gpu import GpuReading, GpuSampler, gpu_sampler
from sft_cli.telemetry.health import ECC_ERRORS, LOW_POWER_LIMIT, NVLINK_ERRORS
from sft_cli.telemetry.nvml_device import Errors, Sample


class Device:
    """Every sample is a second older and warmer than the one before."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self.taken = 0
        self.now_errors = Errors(100, 2, 7)
        self.limits: tuple[float, float] | None = (700.0, 700.0)
        self.counts_activity = True

    def sample(self) -> Sample:
        self.taken += 1
        given = Sample(0.5, 60 + self.taken, 400.0 + self.taken, 1500, 3201, 0x4, Activity(0.8, 0.6, 0.4))
        return replace(given, **self.fields)

    def errors(self) -> Errors:
        return self.now_errors

    def highest_sm_clock_mhz(self) -> int | None:
        return 1980

    def power_limits_w(self) -> tuple[float, float] | None:
        return self.limits


def sampler(device: Device, **arguments: Any) -> GpuSampler:
    return GpuSampler(device, **arguments)  # type: ignore[arg-type]


def test_a_reading_has_all_samples_since_the_one_before() -> None:
    device = Device()
    gpu = sampler(device)
    for _ in range(2):
        gpu._take()
    reading = gpu.read()
    assert reading == GpuReading(
        utilization=0.5,
        temperature_c=63,
        power_w=402.0,
        sm_clock_mhz=1500,
        memory_clock_mhz=3201,
        clock_limits=("power_cap",),
        sm_activity=pytest.approx(0.8),
        tensor_activity=pytest.approx(0.6),
        memory_activity=pytest.approx(0.4),
        ecc_corrected_errors=0,
        ecc_uncorrected_errors=0,
        nvlink_errors=0,
    )
    assert gpu.read() == reading, "the same once more where there is no other"
    gpu._take()
    later = gpu.read()
    assert later is not None
    assert later.temperature_c == 64


def test_there_is_a_reading_at_once_and_it_is_sampled_beside() -> None:
    device = Device()
    gpu = sampler(device, seconds_between=0.01)
    assert gpu.read() is not None
    with gpu.running():
        deadline = time.monotonic() + 10
        while device.taken < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
    taken = device.taken
    assert taken >= 5
    time.sleep(0.05)
    assert device.taken == taken, "it ends when the run does"


def test_errors_count_from_the_start_of_the_run() -> None:
    device = Device()
    gpu = sampler(device)
    device.now_errors = Errors(150, 3, 9)
    assert gpu.health() == 0
    gpu._take(with_errors=True)
    reading = gpu.read()
    assert reading is not None
    assert (reading.ecc_corrected_errors, reading.ecc_uncorrected_errors, reading.nvlink_errors) == (50, 1, 2)
    assert gpu.health() == ECC_ERRORS | NVLINK_ERRORS
    assert gpu.health() == 0, "each is given once a sample"


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (0x1, 0),
        (0x4, 0),  # the software's power cap
        (0x24, 0x20),
        (0x8 | 0x40, 0x40),
        (0x8 | 0x80, 0x80),
        (0x8, 0x8),
        (0x2, 0x2),
        (0x8000, 0),
    ],
)
def test_the_ordinary_power_cap_is_not_worth_a_word(limits: int, told: int) -> None:
    assert sampler(Device(clock_limits=limits)).health() == told


@pytest.mark.parametrize(("clock", "told"), [(1500, 0x2), (1980, 0), (1900, 0), (None, 0)])
def test_a_setting_is_told_where_it_holds_the_clock_down(clock: int | None, told: int) -> None:
    assert sampler(Device(clock_limits=0x2, sm_clock_mhz=clock)).health() == told


def test_a_limit_below_the_gpus_own() -> None:
    device = Device()
    device.limits = (500.0, 700.0)
    gpu = sampler(device)
    assert gpu.health() == LOW_POWER_LIMIT
    device.limits = None
    assert sampler(device).health() == 0


def test_what_is_not_given_is_said_in_words() -> None:
    device = Device(utilization=None, clock_limits=None, activity=None)
    device.counts_activity = False
    device.now_errors = Errors(None, None, None)
    gpu = sampler(device)
    assert gpu.unavailable == ["utilization", "what limits clocks", "SM activity", "ECC errors", "NVLink errors"]
    reading = gpu.read()
    assert reading is not None
    assert (reading.utilization, reading.sm_activity, reading.nvlink_errors) == (None, None, None)
    assert reading.temperature_c == 61
    assert gpu.health() == 0


def test_a_cpu_has_nothing_to_read() -> None:
    with gpu_sampler(None) as cpu:
        assert cpu.read() is None
        assert cpu.health() == 0
        assert cpu.unavailable == []


def test_a_gpu_without_a_driver_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", refuse)
    with gpu_sampler("aaaa") as gpu:
        assert gpu.read() is None
        assert "libnvidia-ml" in gpu.unavailable[0]
