"""Every field that is written is documented, and every one that is documented is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sft_cli.telemetry.gpu import GpuReading
from sft_cli.telemetry.meter import PhaseSeconds, Totals
from sft_cli.telemetry.metric_fields import FIELDS, Field, Line, When
from sft_cli.telemetry.metrics_file import values_of
from sft_cli.telemetry.records import DoneRecord, EvaluationRecord, StepRecord
from sft_cli.telemetry.slow_ranks import Slowest

GPU = GpuReading(0.97, 61, 642.5, 1755.0, 3201.0, ("power_cap",), 0.8, 0.6, 0.4, 0, 0, 0)
PHASES = PhaseSeconds(0.1, 0.2, 0.01)


def fields_of(line: Line, *whens: When) -> list[str]:
    return [field.name for field in FIELDS if field.line is line and field.when in (whens or tuple(When))]


def test_a_step_with_all_that_there_can_be(make_step: Callable[..., StepRecord]) -> None:
    record = make_step(7, gpu=GPU, phases=PHASES, allocator_retries=2, slowest=Slowest(3, 0.12))
    values = values_of(record)
    assert list(values) == fields_of(Line.STEP)
    assert None not in [value for name, value in values.items() if name != "mfu"]
    assert (values["forward_seconds"], values["slowest_rank"], values["gpu_clock_limits"]) == (0.1, 3, ["power_cap"])


def test_a_step_of_one_rank_on_a_cpu(make_step: Callable[..., StepRecord]) -> None:
    assert list(values_of(make_step(7))) == fields_of(Line.STEP, When.ALWAYS)


def test_other_lines() -> None:
    assert list(values_of(EvaluationRecord(1, 2.0, 3))) == fields_of(Line.EVALUATION)
    totals = Totals(10, 9000, 4000, 10240, 12.0, 10.0, 900.0)
    assert list(values_of(DoneRecord(totals, None, None))) == fields_of(Line.DONE)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{field.line.value} {field.name}")
def test_a_name_says_its_unit(field: Field) -> None:
    endings = {"_seconds": "s", "_gib": "GiB", "_c": "°C", "_w": "W", "_mhz": "MHz"}
    for ending, unit in endings.items():
        if field.name.endswith(ending):
            assert field.unit == unit
