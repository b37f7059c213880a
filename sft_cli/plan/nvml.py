"""NVIDIA GPUs of this machine, asked of the driver's own library, so that no torch is needed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0
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


def list_devices(mig_uuids: Sequence[str] = ()) -> tuple[Device, ...]:
    """Every GPU of this machine in PCI order, then the MIG slices asked for; nothing where there is no driver."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return ()
    with initialised(library) as ready:
        if not ready:
            return ()
        handles = [*_handles(library), *handles_of(library, mig_uuids)]
        return tuple(_describe(library, handle) for handle in handles)


@contextmanager
def initialised(library: ctypes.CDLL) -> Iterator[bool]:
    """Whether the driver answers; while entered, handles are good."""
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


def handles_of(library: ctypes.CDLL, uuids: Sequence[str]) -> list[ctypes.c_void_p]:
    """Of those that are on this machine."""
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
