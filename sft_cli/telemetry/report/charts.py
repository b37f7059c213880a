"""Which charts a run has: those that everyone asks for first, then one for every other number of the log."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from sft_cli.telemetry.fields import Field, field_of
from sft_cli.telemetry.report.line_chart import Chart, Curve, Mark, Reference
from sft_cli.telemetry.report.metrics import Metrics, Series, number_of
from sft_cli.telemetry.report.run_files import RunFiles, dig
from sft_cli.telemetry.report.thinning import smoothed, smoothing_span

_COUNTS = ("epoch", "tokens", "supervised_tokens", "slots")
"""Numbers whose course tells nothing that another chart does not."""
_OPTIMIZATION = ("learning_rate", "grad_norm")
_SPEED = ("tokens_per_second", "mfu", "real_share")
_MOST_CURVES = 6


def loss_chart(run: RunFiles) -> Chart | None:
    """Loss as it was, smoothed, and evaluations."""
    metrics = run.metrics
    loss = metrics.series.get("loss")
    curves, note = [], ""
    if loss:
        course = Series(loss.steps, array("d", smoothed(loss.values)))
        curves = [Curve("smoothed", course, "c0"), Curve("loss", loss, "faint")]
        note = f"smoothed over about {smoothing_span(len(loss)):,} lines"
    if metrics.evaluations:
        curves.append(Curve("evaluation", metrics.evaluations, "c1"))
    return Chart("loss", field_of("loss"), curves, _marks(run), note=note, is_wide=True) if curves else None


def optimization_charts(metrics: Metrics) -> list[Chart]:
    return list(_single(metrics, _OPTIMIZATION))


def speed_charts(metrics: Metrics) -> list[Chart]:
    """Throughput, MFU, the parts of a step, padding."""
    charts = list(_single(metrics, _SPEED))
    parts = [key for key in metrics.series if key.endswith("_seconds") and key != "step_seconds"]
    shown = [key for key in ("step_seconds", *parts) if key in metrics.series][:_MOST_CURVES]
    if shown:
        curves = [Curve(field_of(key).title, metrics.series[key], f"c{at}") for at, key in enumerate(shown)]
        charts.insert(2, Chart("step-seconds", Field("Time of a step", "s"), curves))
    return charts


def memory_charts(run: RunFiles) -> list[Chart]:
    """Beside the plan's estimate and what the GPU has."""
    known = (("the plan's estimate", ("memory_gib", "total")), ("the GPU has", ("gpu_memory_gib",)))
    found = [(what, number_of(dig(run.plan, *path))) for what, path in known]
    references = [Reference(value, what) for what, value in found if value is not None]
    keys = [key for key in run.metrics.series if key.endswith("_gib")]
    return [_chart(key, run.metrics.series[key], references if key == "peak_memory_gib" else ()) for key in keys]


def gpu_charts(metrics: Metrics) -> list[Chart]:
    """Whatever the driver was asked."""
    return list(
        _single(metrics, [key for key in metrics.series if key.startswith("gpu_") and not key.endswith("_gib")])
    )


def constants(charts: Sequence[Chart]) -> tuple[list[Chart], list[str]]:
    """Charts that show something; and in words those of a number that never changed."""
    flat = [
        chart for chart in charts if len(values := chart.curves[0].series.values) > 1 and min(values) == max(values)
    ]
    words = [f"{chart.field.title} {chart.field.text(chart.curves[0].series.values[0])}" for chart in flat]
    return [chart for chart in charts if chart not in flat], words


def other_charts(metrics: Metrics) -> list[Chart]:
    """Of numbers that this version does not know."""
    known = {"loss", *_COUNTS, *_OPTIMIZATION, *_SPEED}
    rest = [
        key
        for key in metrics.series
        if key not in known and not key.endswith(("_seconds", "_gib")) and key[:4] != "gpu_"
    ]
    return list(_single(metrics, rest))


def _single(metrics: Metrics, keys: Sequence[str]) -> Iterator[Chart]:
    for key in keys:
        if metrics.series.get(key):
            yield _chart(key, metrics.series[key])


def _chart(key: str, series: Series, references: Sequence[Reference] = ()) -> Chart:
    field = field_of(key)
    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in key)
    return Chart(f"of-{name}", field, [Curve(field.title, series, "c0")], references=references)


def _marks(run: RunFiles) -> list[Mark]:
    resumed = [
        Mark(int(step), f"went on after step {step:.0f}", "resumed")
        for event in run.events
        if event.get("event") == "started" and (step := number_of(event.get("step")))
    ]
    last = run.metrics.last_step or 0
    bad = [Mark(step, f"step {step}: not a finite number", "bad") for step in run.metrics.not_finite]
    return [mark for mark in [*resumed, *bad[:50]] if mark.step <= last]
