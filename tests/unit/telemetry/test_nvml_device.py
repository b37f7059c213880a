"""Against a stand-in for the driver's library: the real one is there only with a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from sft_cli.plan.nvml import SUCCESS
from sft_cli.telemetry.gpm import Activity
from sft_cli.telemetry.nvml_device import Errors, open_device

INVALID, NOT_SUPPORTED, NOT_FOUND = 2, 3, 6


class OldNvml:
    """One GPU (handle 1) of a driver from before GPM and before clocks had "event reasons"; and a slice (handle 2)."""

    def __init__(self) -> None:
        self.uuids = {"GPU-aaaa": 1, "MIG-bbbb": 2}
        self.shut_down = 0
        self.power_answer = SUCCESS
        self.uncorrected = 5

    def nvmlInit_v2(self) -> int:
        return SUCCESS

    def nvmlShutdown(self) -> int:
        self.shut_down += 1
        return SUCCESS

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        if uuid.decode() not in self.uuids:
            return NOT_FOUND
        handle._obj.value = self.uuids[uuid.decode()]
        return SUCCESS

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: ctypes.c_void_p, whole: Any) -> int:
        if handle.value != 2:
            return INVALID
        whole._obj.value = 1
        return SUCCESS

    def _only_whole(self, handle: ctypes.c_void_p, into: Any, value: int, answer: int = SUCCESS) -> int:
        if handle.value != 1:
            return INVALID
        into._obj.value = value
        return answer

    def nvmlDeviceGetUtilizationRates(self, handle: ctypes.c_void_p, utilization: Any) -> int:
        if handle.value != 1:
            return NOT_SUPPORTED
        utilization._obj.gpu = 98
        return SUCCESS

    def nvmlDeviceGetTemperature(self, handle: ctypes.c_void_p, sensor: int, into: Any) -> int:
        assert sensor == 0
        return self._only_whole(handle, into, 61)

    def nvmlDeviceGetPowerUsage(self, handle: ctypes.c_void_p, into: Any) -> int:
        return self._only_whole(handle, into, 650_500, self.power_answer)

    def nvmlDeviceGetClockInfo(self, handle: ctypes.c_void_p, clock: int, into: Any) -> int:
        return self._only_whole(handle, into, {1: 1755, 2: 3201}[clock])

    def nvmlDeviceGetMaxClockInfo(self, handle: ctypes.c_void_p, clock: int, into: Any) -> int:
        assert clock == 1
        return self._only_whole(handle, into, 1980)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: ctypes.c_void_p, into: Any) -> int:
        return self._only_whole(handle, into, 0x4)

    def nvmlDeviceGetTotalEccErrors(self, handle: ctypes.c_void_p, kind: int, counter: int, into: Any) -> int:
        assert counter == 0, "since the driver was loaded"
        return self._only_whole(handle, into, [17, self.uncorrected][kind])

    def nvmlDeviceGetFieldValues(self, handle: ctypes.c_void_p, count: ctypes.c_int, values: Any) -> int:
        """The second counter is one that this GPU lacks."""
        for place, value in enumerate(values._obj):
            assert value.field in (38, 45, 52, 59)
            value.answer, value.value = (NOT_SUPPORTED, 1000) if place == 1 else (SUCCESS, place + 1)
        assert count.value == 4
        return SUCCESS


class Nvml(OldNvml):
    """A Hopper and its driver: a sample holds how often it was taken."""

    def __init__(self) -> None:
        super().__init__()
        self.allocated: list[int] = []
        self.freed: list[int] = []
        self.contents: dict[int, int] = {}
        self.sample_answer = SUCCESS
        self.is_supported = 1

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: ctypes.c_void_p, into: Any) -> int:
        return self._only_whole(handle, into, 0x44)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: ctypes.c_void_p, into: Any) -> int:
        return self._only_whole(handle, into, 500_000)

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: ctypes.c_void_p, into: Any) -> int:
        return self._only_whole(handle, into, 700_000)

    def nvmlGpmQueryDeviceSupport(self, handle: ctypes.c_void_p, support: Any) -> int:
        assert support._obj.version == 1
        support._obj.is_supported = self.is_supported
        return SUCCESS

    def nvmlGpmSampleAlloc(self, sample: Any) -> int:
        sample._obj.value = 100 + len(self.allocated)
        self.allocated.append(sample._obj.value)
        return SUCCESS

    def nvmlGpmSampleFree(self, sample: ctypes.c_void_p) -> int:
        assert sample.value is not None
        self.freed.append(sample.value)
        return SUCCESS

    def nvmlGpmSampleGet(self, handle: ctypes.c_void_p, sample: ctypes.c_void_p) -> int:
        assert handle.value == 1
        assert sample.value is not None
        if self.sample_answer == SUCCESS:
            self.contents[sample.value] = max(self.contents.values(), default=0) + 1
        return self.sample_answer

    def nvmlGpmMetricsGet(self, request: Any) -> int:
        asked = request._obj
        assert (asked.version, asked.count) == (1, 3)
        elapsed = self.contents[asked.after] - self.contents[asked.before]
        assert elapsed > 0, "the newer sample is the second one"
        for metric in asked.metrics[:3]:
            value, answer = {2: (80.0, SUCCESS), 5: (60.0, SUCCESS), 10: (0.0, NOT_SUPPORTED)}[metric.metric]
            metric.value, metric.answer = value * elapsed, answer
        return SUCCESS


def put_in_place(monkeypatch: pytest.MonkeyPatch, library: OldNvml) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)


def test_all_that_a_new_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    put_in_place(monkeypatch, nvml)
    with open_device("aaaa") as device:
        assert device is not None
        assert device.counts_activity
        first, second, third = (device.sample() for _ in range(3))
        assert (first.utilization, first.temperature_c, first.power_w) == (0.98, 61, 650.5)
        assert (first.sm_clock_mhz, first.memory_clock_mhz, first.clock_limits) == (1755, 3201, 0x44)
        assert first.activity == second.activity == third.activity == Activity(sm=0.8, tensor=0.6, memory=None)
        assert device.errors() == Errors(ecc_corrected=17, ecc_uncorrected=5, nvlink=1 + 3 + 4)
        assert device.power_limits_w() == (500, 700)
        assert device.highest_sm_clock_mhz() == 1980
        assert nvml.shut_down == 0
    assert nvml.shut_down == 1
    assert nvml.freed == nvml.allocated == [100, 101]


def test_an_old_driver_leaves_out_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = OldNvml()
    put_in_place(monkeypatch, nvml)
    with open_device("GPU-aaaa") as device:
        assert device is not None
        assert not device.counts_activity
        sample = device.sample()
        assert (sample.utilization, sample.clock_limits, sample.activity) == (0.98, 0x4, None)
        assert device.power_limits_w() is None
        nvml.power_answer = NOT_SUPPORTED
        assert device.sample().power_w is None
        assert device.sample().temperature_c == 61


def test_activity_that_can_not_be_read_is_left_out_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    put_in_place(monkeypatch, nvml)
    with open_device("aaaa") as device:
        assert device is not None
        nvml.sample_answer = NOT_SUPPORTED
        assert device.sample().activity is None
        nvml.sample_answer = SUCCESS
        assert device.sample().activity == Activity(0.8, 0.6, None)


def test_a_gpu_before_hopper_counts_no_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    nvml.is_supported = 0
    put_in_place(monkeypatch, nvml)
    with open_device("aaaa") as device:
        assert device is not None
        assert not device.counts_activity
    assert nvml.allocated == []


def test_a_slice_has_the_sensors_of_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA gives a slice's number without saying that it is one."""
    put_in_place(monkeypatch, Nvml())
    with open_device("bbbb") as device:
        assert device is not None
        sample = device.sample()
        assert (sample.utilization, sample.activity) == (None, None), "not those of the whole GPU"
        assert (sample.temperature_c, sample.power_w) == (61, 650.5)


def test_a_gpu_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    put_in_place(monkeypatch, nvml)
    with open_device("cccc") as device:
        assert device is None
    assert nvml.shut_down == 1


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with open_device("aaaa") as device:
        assert device is None


def test_structures_are_as_long_as_nvml_h_has_them() -> None:
    from sft_cli.telemetry import gpm, nvml_device

    assert ctypes.sizeof(nvml_device._FieldValue) == 40
    assert ctypes.sizeof(gpm._Metric) == 40
    assert gpm._MetricsGet.metrics.offset == 24
