"""One GPU as the driver's library describes it, each number asked for alone: what it does not give is left out."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from sft_cli.plan.nvml import LIBRARY, SUCCESS, handles_of, initialised
from sft_cli.telemetry.gpm import Activity, ActivityMeter

# Constants of nvml.h.
_GPU_SENSOR = 0
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_CORRECTED, _UNCORRECTED = 0, 1
_SINCE_DRIVER_LOADED = 0
_NVLINK_ERROR_TOTALS = (38, 45, 52, 59)
"""Fields of the sums over links: flow control CRC, data CRC, replays, recoveries."""


class _Utilization(ctypes.Structure):
    """`nvmlUtilization_t`, in percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _FieldValue(ctypes.Structure):
    """`nvmlFieldValue_t`; the union at its end read as the unsigned number that counters are."""

    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("kind", ctypes.c_uint),
        ("answer", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )


@dataclass(frozen=True)
class Sample:
    """What a GPU does at one moment. None: the driver does not say."""

    utilization: float | None = None
    """Share of the driver's last sampling period (up to a second) in which some kernel ran, 0 to 1."""
    temperature_c: int | None = None
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    clock_limits: int | None = None
    """Bits of `telemetry/clock_limits.py`."""
    activity: Activity | None = None
    """Since the sample before."""


@dataclass(frozen=True)
class Errors:
    """Counted since the driver was loaded. None: the driver does not say."""

    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    nvlink: int | None = None


class NvmlDevice:
    """Args:
    library: initialised.
    whole: the GPU, which has sensors.
    device: the same, or a slice of it, which has none.
    """

    def __init__(self, library: Any, whole: ctypes.c_void_p, device: ctypes.c_void_p) -> None:
        self._library = library
        self._whole = whole
        self._device = device
        self._activity: ActivityMeter | None = None

    @contextmanager
    def measuring_activity(self) -> Iterator[None]:
        """While entered, samples tell what the multiprocessors do, where the GPU counts that (Hopper and later)."""
        with ActivityMeter.of(self._library, self._device, self._whole) as meter:
            self._activity = meter
            yield
            self._activity = None

    @property
    def counts_activity(self) -> bool:
        """Whether samples tell it, the second one and later ones."""
        return self._activity is not None

    def sample(self) -> Sample:
        utilization = _Utilization()
        is_answered = self._answers("nvmlDeviceGetUtilizationRates", self._device, ctypes.byref(utilization))
        power = self._number(ctypes.c_uint(), "nvmlDeviceGetPowerUsage")
        return Sample(
            utilization=utilization.gpu / 100 if is_answered else None,
            temperature_c=self._number(ctypes.c_uint(), "nvmlDeviceGetTemperature", _GPU_SENSOR),
            power_w=None if power is None else power / 1000,
            sm_clock_mhz=self._number(ctypes.c_uint(), "nvmlDeviceGetClockInfo", _SM_CLOCK),
            memory_clock_mhz=self._number(ctypes.c_uint(), "nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
            clock_limits=self._clock_limits(),
            activity=None if self._activity is None else self._activity.read(),
        )

    def errors(self) -> Errors:
        corrected, uncorrected = (
            self._number(ctypes.c_ulonglong(), "nvmlDeviceGetTotalEccErrors", kind, _SINCE_DRIVER_LOADED)
            for kind in (_CORRECTED, _UNCORRECTED)
        )
        return Errors(corrected, uncorrected, self._nvlink_errors())

    def highest_sm_clock_mhz(self) -> int | None:
        """That the GPU can run at."""
        return self._number(ctypes.c_uint(), "nvmlDeviceGetMaxClockInfo", _SM_CLOCK)

    def power_limits_w(self) -> tuple[float, float] | None:
        """What is enforced, and what the GPU came with."""
        names = ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementDefaultLimit")
        enforced, default = (self._number(ctypes.c_uint(), name) for name in names)
        return None if enforced is None or default is None else (enforced / 1000, default / 1000)

    def _clock_limits(self) -> int | None:
        # The first is the newer name; drivers below 535 have the second alone, and a driver of CUDA 14 won't have it.
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        found = (self._number(ctypes.c_ulonglong(), name) for name in names)
        return next((bits for bits in found if bits is not None), None)

    def _nvlink_errors(self) -> int | None:
        fields = (_FieldValue * len(_NVLINK_ERROR_TOTALS))()
        for value, number in zip(fields, _NVLINK_ERROR_TOTALS, strict=True):
            value.field = number
        count = ctypes.c_int(len(fields))
        if not self._answers("nvmlDeviceGetFieldValues", self._whole, count, ctypes.byref(fields)):
            return None
        answered = [value.value for value in fields if value.answer == SUCCESS]
        return sum(answered) if answered else None

    def _number(self, into: Any, function: str, *arguments: int) -> int | None:
        """What a function of the whole GPU writes into its last argument; None where it has no answer."""
        return into.value if self._answers(function, self._whole, *arguments, ctypes.byref(into)) else None

    def _answers(self, function: str, *arguments: Any) -> bool:
        return answers(self._library, function, *arguments)


def answers(library: Any, function: str, *arguments: Any) -> bool:
    """Whether a function is in this version of the library, and could do what it was asked."""
    try:
        call = getattr(library, function)
    except AttributeError:
        return False
    return bool(call(*arguments) == SUCCESS)


@contextmanager
def open_device(uuid: str) -> Iterator[NvmlDevice | None]:
    """The GPU or the slice of one with this UUID; None where no driver knows it.

    Args:
        uuid: with or without `GPU-` or `MIG-`: CUDA has one kind of number for both.
    """
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        yield None
        return
    number = uuid.removeprefix("GPU-").removeprefix("MIG-")
    with ExitStack() as stack:
        is_ready = stack.enter_context(initialised(library))
        handles = handles_of(library, [f"GPU-{number}", f"MIG-{number}"]) if is_ready else []
        if not handles:
            yield None
            return
        whole = ctypes.c_void_p()
        is_slice = answers(library, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handles[0], ctypes.byref(whole))
        device = NvmlDevice(library, whole if is_slice else handles[0], handles[0])
        stack.enter_context(device.measuring_activity())
        yield device
