from __future__ import annotations

import pytest

from sft_cli.telemetry.fields import field_of, number_text


@pytest.mark.parametrize(
    ("key", "title", "value", "text"),
    [
        ("gpu_utilization", "GPU utilisation", 0.98, "98%"),
        ("gpu_temperature_c", "GPU temperature", 62, "62 °C"),
        ("peak_memory_gib", "Peak memory", 57.931, "57.93 GiB"),
        # Not in the table: from the words of the key.
        ("gpu_sm_clock_mhz", "GPU SM clock", 1980.0, "1,980 MHz"),
        ("gpu_sm_activity", "GPU SM activity", 0.715, "71.5%"),
        ("gpu_nvlink_errors", "GPU NVLink errors", 0, "0"),
        ("forward_seconds", "Forward", 0.0421, "0.0421 s"),
        ("rows_per_second", "Rows", 12.0, "12 /s"),
        ("", "", 1.0, "1"),
    ],
)
def test_title_and_unit(key: str, title: str, value: float, text: str) -> None:
    field = field_of(key)
    assert (field.title, field.text(value)) == (title, text)


def test_levels_do_not_begin_at_zero() -> None:
    assert [field_of(key).from_zero for key in ("gpu_temperature_c", "gpu_sm_clock_mhz", "gpu_power_w", "mfu")] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.07142, "0.07142"), (2.3146, "2.315"), (999.96, "1000"), (1980, "1,980"), (3.3e-6, "3.3e-6"),
     (1e-5, "1e-5"), (-0.5, "-0.5"), (1_234_567.8, "1,234,568"), (2.5e13, "2.5e13")],
)  # fmt: skip
def test_numbers_are_short(value: float, text: str) -> None:
    assert number_text(value) == text
