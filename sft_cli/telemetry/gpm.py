"""What the multiprocessors of a GPU do, from the counters that the driver reads without a profiler (GPM, Hopper on)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from sft_cli.plan.nvml import SUCCESS

_VERSION = 1
_SM, _TENSOR, _MEMORY = 2, 5, 10
"""`nvmlGpmMetricId_t`: SM_UTIL, ANY_TENSOR_UTIL, DRAM_BW_UTIL."""


class _Support(ctypes.Structure):
    """`nvmlGpmSupport_t`."""

    _fields_ = (("version", ctypes.c_uint), ("is_supported", ctypes.c_uint))


class _Metric(ctypes.Structure):
    """`nvmlGpmMetric_t`; the names at its end are three pointers."""

    _fields_ = (
        ("metric", ctypes.c_uint),
        ("answer", ctypes.c_int),
        ("value", ctypes.c_double),
        ("names", ctypes.c_void_p * 3),
    )


class _MetricsGet(ctypes.Structure):
    """`nvmlGpmMetricsGet_t`. Its array is longer in every version of nvml.h; the library reads `count` of them, and
    what it may clear beyond is there: twice today's length."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("before", ctypes.c_void_p),
        ("after", ctypes.c_void_p),
        ("metrics", _Metric * 1024),
    )


@dataclass(frozen=True)
class Activity:
    """Shares of the time between two samples, 0 to 1; None where the GPU does not count it."""

    sm: float | None
    """Multiprocessors that had work, the mean over all of them."""
    tensor: float | None
    """Tensor cores that had work."""
    memory: float | None
    """Bandwidth of the GPU's memory that was used."""


class ActivityMeter:
    """Compares each sample with the one before."""

    def __init__(self, library: Any, take: Any, samples: tuple[ctypes.c_void_p, ctypes.c_void_p]) -> None:
        self._library = library
        self._take = take
        self._before, self._after = samples
        self._has_before = self._take(self._before)

    @classmethod
    @contextmanager
    def of(cls, library: Any, device: ctypes.c_void_p, whole: ctypes.c_void_p) -> Iterator[Self | None]:
        """None for a GPU that does not count, and for a driver (below 520) that can't be asked.

        Args:
            device: the GPU, or a slice of it.
            whole: the GPU.
        """
        try:
            query, allocate, free, take = (
                library.nvmlGpmQueryDeviceSupport,
                library.nvmlGpmSampleAlloc,
                library.nvmlGpmSampleFree,
                library.nvmlGpmSampleGet,
            )
        except AttributeError:
            yield None
            return
        support = _Support(version=_VERSION)
        # Slices have counters of their own behind another function, which none of ours could be tried on.
        if device is not whole or query(whole, ctypes.byref(support)) != SUCCESS or not support.is_supported:
            yield None
            return
        samples = ctypes.c_void_p(), ctypes.c_void_p()
        allocated = [sample for sample in samples if allocate(ctypes.byref(sample)) == SUCCESS]
        try:
            is_ready = len(allocated) == len(samples)
            yield cls(library, lambda sample: take(whole, sample) == SUCCESS, samples) if is_ready else None
        finally:
            for sample in allocated:
                free(sample)

    def read(self) -> Activity | None:
        """Since the last call; None where the counters could not be read."""
        if not self._take(self._after):
            return None
        request = _MetricsGet(version=_VERSION, count=3, before=self._before, after=self._after)
        for metric, number in zip(request.metrics, (_SM, _TENSOR, _MEMORY), strict=False):
            metric.metric = number
        had_before = self._has_before
        is_answered = had_before and self._library.nvmlGpmMetricsGet(ctypes.byref(request)) == SUCCESS
        self._before, self._after, self._has_before = self._after, self._before, True
        return Activity(*map(_share, request.metrics[:3])) if is_answered else None


def _share(metric: Any) -> float | None:
    return metric.value / 100 if metric.answer == SUCCESS else None
