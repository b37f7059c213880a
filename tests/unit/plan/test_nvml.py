"""Against a stand-in for the driver's library: the real one is there only with a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from sft_cli.plan.nvml import SUCCESS, Device, list_devices

NOT_FOUND = 6


class FakeNvml:
    """Two GPUs and a slice; a handle is the index in `uuids`."""

    uuids = ("GPU-aaaa", "GPU-bbbb", "MIG-cccc")
    init_code = SUCCESS
    shut_down = 0

    def nvmlInit_v2(self) -> int:
        return self.init_code

    def nvmlShutdown(self) -> int:
        self.shut_down += 1
        return SUCCESS

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return SUCCESS

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return SUCCESS

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        if uuid.decode() not in self.uuids:
            return NOT_FOUND
        handle._obj.value = self.uuids.index(uuid.decode()) + 1
        return SUCCESS

    def nvmlDeviceGetName(self, handle: ctypes.c_void_p, name: Any, length: ctypes.c_uint) -> int:
        name.value = f"GPU number {handle.value}".encode()
        return SUCCESS

    def nvmlDeviceGetUUID(self, handle: ctypes.c_void_p, uuid: Any, length: ctypes.c_uint) -> int:
        assert handle.value is not None
        uuid.value = self.uuids[handle.value - 1].encode()
        return SUCCESS

    def nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, memory: Any) -> int:
        assert handle.value is not None
        memory._obj.total = handle.value << 30
        return SUCCESS

    def nvmlDeviceGetCudaComputeCapability(self, handle: ctypes.c_void_p, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 9, 0
        return SUCCESS


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    library = FakeNvml()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    return library


def test_every_gpu_and_the_slices_asked_for(nvml: FakeNvml) -> None:
    assert list_devices(["MIG-cccc", "MIG-gone"]) == (
        Device("GPU-aaaa", "GPU number 1", 1.0, (9, 0)),
        Device("GPU-bbbb", "GPU number 2", 2.0, (9, 0)),
        Device("MIG-cccc", "GPU number 3", 3.0, (9, 0)),
    )
    assert nvml.shut_down == 1


def test_a_library_without_a_driver_has_no_gpus(nvml: FakeNvml) -> None:
    nvml.init_code = 9
    assert list_devices() == ()
    assert nvml.shut_down == 0


def test_no_library_no_gpus(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert list_devices() == ()
    assert capfd.readouterr() == ("", "")
