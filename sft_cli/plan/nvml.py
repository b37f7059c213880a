"""NVIDIA GPUs of this machine, asked of the driver's own library, so that no torch is needed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0
GPU_SENSOR = 0
NAME_BYTES = 96
UUID_BYTES = 96


@dataclass(frozen=True)
class Device:
    uuid: str
    """`GPU-...`, or `MIG-...` for a slice of one."""
    name: str
    memory_gib: float
    compute_capability: tuple[int, int]
    """(9, 0) is Hopper."""


class _Memory(ctypes.Structure):
    """`nvmlMemory_t` of nvml.h, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    """`nvmlUtilization_t` of nvml.h, in percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


@dataclass(frozen=True)
class Reading:
    """What a device is doing at one moment, in the driver's own units."""

    utilization_percent: int
    temperature_c: int
    power_milliwatt: int


@contextmanager
def open_device(uuid: str) -> Iterator[Callable[[], Reading | None]]:
    """A function that reads a device again and again; it gives None where the driver does not answer."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        yield lambda: None
        return
    with _initialised(library) as ready:
        handles = _handles_of(library, [uuid]) if ready else []
        yield (lambda: _read(library, handles[0])) if handles else (lambda: None)


def _read(library: ctypes.CDLL, handle: ctypes.c_void_p) -> Reading | None:
    utilization, temperature, power = _Utilization(), ctypes.c_uint(), ctypes.c_uint()
    answers = (
        library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(utilization)),
        library.nvmlDeviceGetTemperature(handle, GPU_SENSOR, ctypes.byref(temperature)),
        library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(power)),
    )
    if any(answer != SUCCESS for answer in answers):
        return None
    return Reading(utilization.gpu, temperature.value, power.value)


def list_devices(mig_uuids: Sequence[str] = ()) -> tuple[Device, ...]:
    """Every GPU of this machine in PCI order, then the MIG slices asked for; nothing where there is no driver."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return ()
    with _initialised(library) as ready:
        if not ready:
            return ()
        handles = [*_handles(library), *_handles_of(library, mig_uuids)]
        return tuple(_describe(library, handle) for handle in handles)


@contextmanager
def _initialised(library: ctypes.CDLL) -> Iterator[bool]:
    # The library may be there without a kernel module: in a container, or after a failed update.
    if library.nvmlInit_v2() != SUCCESS:
        yield False
        return
    try:
        yield True
    finally:
        library.nvmlShutdown()


def _handles(library: ctypes.CDLL) -> list[ctypes.c_void_p]:
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != SUCCESS:
        return []
    handles = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == SUCCESS:
            handles.append(handle)
    return handles


def _handles_of(library: ctypes.CDLL, uuids: Sequence[str]) -> list[ctypes.c_void_p]:
    handles = []
    for uuid in uuids:
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) == SUCCESS:
            handles.append(handle)
    return handles


def _describe(library: ctypes.CDLL, handle: ctypes.c_void_p) -> Device:
    name = ctypes.create_string_buffer(NAME_BYTES)
    uuid = ctypes.create_string_buffer(UUID_BYTES)
    memory = _Memory()
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvmlDeviceGetName(handle, name, ctypes.c_uint(NAME_BYTES))
    library.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(UUID_BYTES))
    library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    return Device(
        uuid=uuid.value.decode(),
        name=name.value.decode(),
        memory_gib=memory.total / (1 << 30),
        compute_capability=(major.value, minor.value),
    )
