"""What the driver says of a rank's GPU while a run is on, sampled beside training."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean

from sft_cli.telemetry import clock_limits
from sft_cli.telemetry.health import ECC_ERRORS, LOW_POWER_LIMIT, NVLINK_ERRORS
from sft_cli.telemetry.nvml_device import Errors, NvmlDevice, Sample, open_device

SECONDS_BETWEEN_SAMPLES = 1.0
_SAMPLES_BETWEEN_ERRORS = 10
"""Counters of errors stand still while all is well."""
_SECONDS_TO_END = 5.0
"""For a sample: a driver whose GPU is gone may not answer, and the run's end is not to hang on that."""
_LOW_POWER_SHARE = 0.95
"""A power limit below this share of the GPU's own is told."""


@dataclass(frozen=True)
class GpuReading:
    """Over the samples since the reading before. None: the driver does not say."""

    utilization: float | None = None
    """Mean share of time in which some kernel ran, 0 to 1. Not how well it used the GPU: that is the MFU."""
    temperature_c: int | None = None
    """The highest."""
    power_w: float | None = None
    """Mean."""
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    """Means."""
    clock_limits: tuple[str, ...] | None = None
    """All that kept the clocks from being higher: names of `telemetry/clock_limits.py`."""
    sm_activity: float | None = None
    tensor_activity: float | None = None
    memory_activity: float | None = None
    """Mean shares as in `telemetry/gpm.py`."""
    ecc_corrected_errors: int | None = None
    ecc_uncorrected_errors: int | None = None
    nvlink_errors: int | None = None
    """Since the run began."""


class GpuSampler:
    """Samples a GPU in a thread of its own: calls of the driver take up to milliseconds, and hold no lock of Python's.

    Args:
        device: None where there is no GPU, or no driver that knows it.
        seconds_between: samples.
    """

    def __init__(self, device: NvmlDevice | None, seconds_between: float = SECONDS_BETWEEN_SAMPLES) -> None:
        self._device = device
        self._seconds_between = seconds_between
        self._lock = threading.Lock()
        self._samples: list[Sample] = []
        self._last = GpuReading()
        self._health = 0
        self._is_over = threading.Event()
        self.unavailable: list[str] = []
        """What this driver does not say of this GPU, in words."""
        if device is not None:
            self._errors_at_start = self._errors = device.errors()
            self._highest_mhz = device.highest_sm_clock_mhz()
            self._own_health = LOW_POWER_LIMIT if _has_low_limit(device.power_limits_w()) else 0
            self._take()
            self.unavailable = list(_unavailable(self._samples[0], self._errors, device.counts_activity))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Samples while entered."""
        if self._device is None:
            yield
            return
        thread = threading.Thread(target=self._run, name="gpu sampler", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join(_SECONDS_TO_END)

    def read(self) -> GpuReading | None:
        """Since the last reading; the same once more where no sample has been taken since. None without a GPU."""
        if self._device is None:
            return None
        with self._lock:
            samples, self._samples = self._samples, []
            errors = self._errors
        if samples:
            self._last = _reading(samples, self._errors_at_start, errors)
        return self._last

    def health(self) -> int:
        """Bits of `telemetry/health.py` that any sample had since the last call."""
        with self._lock:
            health, self._health = self._health, 0
        return health

    def _run(self) -> None:
        taken = 0
        while not self._is_over.wait(self._seconds_between):
            taken += 1
            self._take(with_errors=taken % _SAMPLES_BETWEEN_ERRORS == 0)

    def _take(self, *, with_errors: bool = False) -> None:
        assert self._device is not None
        sample = self._device.sample()
        errors = self._device.errors() if with_errors else self._errors
        health = self._own_health | clock_limits.told(sample.clock_limits or 0, sample.sm_clock_mhz, self._highest_mhz)
        health |= ECC_ERRORS * _has_grown(self._errors_at_start.ecc_uncorrected, errors.ecc_uncorrected)
        health |= NVLINK_ERRORS * _has_grown(self._errors_at_start.nvlink, errors.nvlink)
        with self._lock:
            self._samples.append(sample)
            self._errors = errors
            self._health |= health


@contextmanager
def gpu_sampler(uuid: str | None) -> Iterator[GpuSampler]:
    """Samples the GPU with this UUID while entered; None is a CPU, of which there is nothing to read."""
    if uuid is None:
        yield GpuSampler(None)
        return
    with open_device(uuid) as device:
        sampler = GpuSampler(device)
        if device is None:
            sampler.unavailable = ["anything (there is no libnvidia-ml.so.1, or it does not know the GPU)"]
        with sampler.running():
            yield sampler


def _unavailable(sample: Sample, errors: Errors, counts_activity: bool) -> Iterator[str]:
    given = {
        "utilization": sample.utilization is not None,
        "temperature": sample.temperature_c is not None,
        "power": sample.power_w is not None,
        "clocks": sample.sm_clock_mhz is not None,
        "what limits clocks": sample.clock_limits is not None,
        "SM activity": counts_activity,
        "ECC errors": errors.ecc_uncorrected is not None,
        "NVLink errors": errors.nvlink is not None,
    }
    yield from (words for words, is_given in given.items() if not is_given)


def _reading(samples: Sequence[Sample], at_start: Errors, errors: Errors) -> GpuReading:
    def over_samples(of: Callable[[Sequence[float]], float], numbers: Sequence[float | None]) -> float | None:
        known = [number for number in numbers if number is not None]
        return of(known) if known else None

    activities = [sample.activity for sample in samples if sample.activity is not None]
    hottest = over_samples(max, [sample.temperature_c for sample in samples])
    bits = [sample.clock_limits for sample in samples if sample.clock_limits is not None]
    any_bits = 0
    for one in bits:
        any_bits |= one
    return GpuReading(
        utilization=over_samples(fmean, [sample.utilization for sample in samples]),
        temperature_c=None if hottest is None else int(hottest),
        power_w=over_samples(fmean, [sample.power_w for sample in samples]),
        sm_clock_mhz=over_samples(fmean, [sample.sm_clock_mhz for sample in samples]),
        memory_clock_mhz=over_samples(fmean, [sample.memory_clock_mhz for sample in samples]),
        clock_limits=tuple(clock_limits.names(any_bits)) if bits else None,
        sm_activity=over_samples(fmean, [activity.sm for activity in activities]),
        tensor_activity=over_samples(fmean, [activity.tensor for activity in activities]),
        memory_activity=over_samples(fmean, [activity.memory for activity in activities]),
        ecc_corrected_errors=_since(at_start.ecc_corrected, errors.ecc_corrected),
        ecc_uncorrected_errors=_since(at_start.ecc_uncorrected, errors.ecc_uncorrected),
        nvlink_errors=_since(at_start.nvlink, errors.nvlink),
    )


def _since(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else now - before


def _has_grown(before: int | None, now: int | None) -> bool:
    return (_since(before, now) or 0) > 0


def _has_low_limit(limits_w: tuple[float, float] | None) -> bool:
    return limits_w is not None and limits_w[0] < _LOW_POWER_SHARE * limits_w[1]
