"""What lines of the log tell beside the meter's numbers."""

from __future__ import annotations

from sft_cli.telemetry.gpu import GpuReading
from sft_cli.telemetry.meter import Meter, PhaseSeconds
from sft_cli.telemetry.terminal import SilentView
from sft_cli.train.report import Gauges, Report


def test_what_was_measured_of_replayed_steps_is_of_no_line() -> None:
    phases = [PhaseSeconds(1.0, 2.0, 0.5), None]
    readings = [GpuReading(utilization=1.0), None]
    gauges = Gauges(gpu=lambda: readings.pop(0), phases=lambda: phases.pop(0))
    Report(Meter(), (), SilentView(), lambda step: 0.0, gauges).forget()
    assert phases == readings == [None]
