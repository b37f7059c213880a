"""What lines of the log tell beside the meter's numbers."""

from __future__ import annotations

from sft_cli.data.loader import StepBatches
from sft_cli.telemetry.gpu import GpuReading
from sft_cli.telemetry.meter import Meter, PhaseSeconds
from sft_cli.telemetry.terminal import SilentView
from sft_cli.train.report import Gauges, Report
from sft_cli.train.step import Numbers


def test_what_was_measured_of_replayed_steps_is_of_no_line() -> None:
    phases = [PhaseSeconds(1.0, 2.0, 0.5), None]
    readings = [GpuReading(utilization=1.0), None]
    late = ["_norm (0.8 s)", None]
    gauges = Gauges(gpu=lambda: readings.pop(0), phases=lambda: phases.pop(0), late_kernels=lambda: late.pop(0))
    Report(Meter(), (), SilentView(), lambda step: 0.0, gauges).forget()
    assert phases == readings == late == [None]


def test_a_line_says_what_was_compiled_before_it() -> None:
    late, said = ["_norm (0.8 s)", None], []
    view = SilentView()
    view.say = said.append  # type: ignore[method-assign]
    clock = iter(range(100))
    meter = Meter(clock=lambda: float(next(clock)))
    report = Report(meter, (), view, lambda step: 0.0, Gauges(late_kernels=lambda: late.pop(0)))
    meter.start()
    for step in (3, 4):
        meter.count_step(tokens=1, supervised_tokens=1, slots=1)
        report.log(StepBatches(step, 0.0, ()), Numbers(1.0, 1.0, 0), 0)
    assert said == ["step 3: since the line before Triton compiled _norm (0.8 s), and the GPU waited for it"]
