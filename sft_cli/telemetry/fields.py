"""What the numbers of metrics.jsonl are called and how they are written, also those that this table does not know."""

from __future__ import annotations

from dataclasses import dataclass

_SHARE = "share"


@dataclass(frozen=True)
class Field:
    """One number of a step."""

    title: str
    unit: str = ""
    """As it stands behind the number; `share`: 0 to 1, shown in percent."""
    from_zero: bool = True
    """Whether an axis begins at 0: for amounts, not for levels."""
    may_be_logarithmic: bool = False
    """Whether an axis is, where one value is far above the others."""

    @property
    def shown_unit(self) -> str:
        return "%" if self.unit == _SHARE else self.unit

    @property
    def scale(self) -> float:
        """What a number is multiplied with before it is shown."""
        return 100.0 if self.unit == _SHARE else 1.0

    @property
    def suffix(self) -> str:
        """What stands behind a number."""
        return "%" if self.unit == _SHARE else f" {self.unit}".rstrip()

    def text(self, value: float) -> str:
        """`41.6%`, `57.93 GiB`, `1,980 MHz`, `62 °C`."""
        return number_text(value * self.scale) + self.suffix


_KNOWN = {
    "loss": Field("Loss", "nats a token", from_zero=False, may_be_logarithmic=True),
    "eval_loss": Field("Evaluation loss", "nats a token", from_zero=False),
    "grad_norm": Field("Gradient norm, before clipping", may_be_logarithmic=True),
    "learning_rate": Field("Learning rate"),
    "tokens_per_second": Field("Throughput", "real tokens/s"),
    "mfu": Field("MFU", _SHARE),
    "step_seconds": Field("Step", "s"),
    "data_wait_seconds": Field("Waiting for data", "s"),
    "peak_memory_gib": Field("Peak memory", "GiB"),
    "real_share": Field("Real tokens among slots", _SHARE),
    "gpu_utilization": Field("GPU utilisation", _SHARE),
    "gpu_temperature_c": Field("GPU temperature", "°C", from_zero=False),
    "gpu_power_w": Field("GPU power", "W"),
}
_SUFFIXES = (
    ("_tokens_per_second", "tokens/s"),
    ("_per_second", "/s"),
    ("_seconds", "s"),
    ("_gib", "GiB"),
    ("_mhz", "MHz"),
    ("_c", "°C"),
    ("_w", "W"),
)
_SHARES = ("utilization", "utilisation", "activity", "share", "mfu")
_LEVELS = ("°C", "MHz")
_SPELT = {"gpu": "GPU", "sm": "SM", "ecc": "ECC", "nvlink": "NVLink", "pcie": "PCIe", "cpu": "CPU", "mfu": "MFU"}
_DIGITS = 4
_SMALL, _LARGE = 1e-3, 1e12
"""Beyond these a number is written with a power of ten."""


def field_of(key: str) -> Field:
    """A known one, or what a key's own words and unit say."""
    if key in _KNOWN:
        return _KNOWN[key]
    for suffix, unit in _SUFFIXES:
        if key.endswith(suffix):
            return Field(_title(key.removesuffix(suffix)), unit, from_zero=unit not in _LEVELS)
    return Field(_title(key), _SHARE if key.rsplit("_", 1)[-1] in _SHARES else "")


def number_text(value: float) -> str:
    """Four digits: `0.0714`, `2.314`, `57.93`, `1,980`, `1,234,568`, `3.3e-5`."""
    size = abs(value)
    if size >= 10 ** (_DIGITS - 1) and size < _LARGE:
        return f"{value:,.0f}"
    if size >= _LARGE or 0 < size < _SMALL:
        return power_text(value)
    return f"{value:.{_DIGITS}g}"


def power_text(value: float) -> str:
    """Two digits and a power of ten: `1.5e-3`."""
    digits, power = f"{value:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"


def _title(key: str) -> str:
    words = [_SPELT.get(word, word) for word in key.split("_") if word]
    text = " ".join(words)
    return text[:1].upper() + text[1:]
