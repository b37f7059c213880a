"""report.html of a run: one page that needs nothing else, and no network. Its script only adds a read-out to charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from statistics import fmean

from sft_cli.telemetry.fields import field_of, number_text
from sft_cli.telemetry.html_page import html_page
from sft_cli.telemetry.html_parts import card, figures
from sft_cli.telemetry.progress import format_duration
from sft_cli.telemetry.report.charts import (
    constants,
    gpu_charts,
    loss_chart,
    memory_charts,
    optimization_charts,
    other_charts,
    speed_charts,
)
from sft_cli.telemetry.report.line_chart import Chart
from sft_cli.telemetry.report.metrics import number_of
from sft_cli.telemetry.report.run_files import RunFiles, dig
from sft_cli.telemetry.report.sections import (
    data_section,
    evaluation_section,
    event_section,
    gate_section,
    kernel_section,
    plan_section,
    recipe_section,
)
from sft_cli.telemetry.report.state import failures, lately, state_of, steps_planned
from sft_cli.telemetry.report.thinning import smoothing_span

_STYLE = Path(__file__).with_name("page.css")
_SCRIPT = Path(__file__).with_name("read_out.js")


def page(run: RunFiles) -> str:
    """The whole page as text."""
    state, model = state_of(run), dig(run.plan, "recipe", "model", "path")
    what = f"{model or 'a model'}, as of {run.now:%Y-%m-%d %H:%M:%S}"
    profile = f' · <a href="{escape(run.profile)}">profile of a step</a>' if run.profile else ""
    return html_page(
        f"{run.name}: {model or 'run'}",
        _STYLE,
        [
            f'<header><h1>{escape(run.name)} <span class="state {state.kind}">{escape(state.word)}</span></h1>',
            f'<p class="quiet">{escape(what)}{profile}</p>',
            f"<p>{escape(state.text)}</p>" if state.kind != "bad" else _trouble(run, state.text),
            "</header>",
            figures(_figures(run)),
            *_charts(run),
            event_section(run),
            evaluation_section(run.metrics.evaluations),
            gate_section(run.exactness),
            data_section(run),
            plan_section(run.plan),
            kernel_section(run.kernels),
            recipe_section(run),
        ],
        script=_SCRIPT,
    )


def _trouble(run: RunFiles, text: str) -> str:
    last = next(iter(failures(run.events)), {})
    is_of_error = dig(last, "what") == text
    lines = [dig(last, "where"), text, dig(last, "fix")] if is_of_error else [text]
    shown = "".join(f"<p>{escape(str(line))}</p>" for line in lines if line)
    return f'<div class="trouble">{shown}</div>'


def _figures(run: RunFiles) -> Iterator[tuple[str, str]]:
    metrics, planned = run.metrics, steps_planned(run)
    if metrics.last_step is not None:
        of = "" if planned is None else f" of {planned:,}"
        yield f"steps{of}", f"{metrics.last_step:,}"
    if loss := metrics.series.get("loss"):
        span = min(len(loss), smoothing_span(len(loss)))
        yield f"loss, mean of the last {span:,} lines", number_text(fmean(loss.values[-span:]))
    if metrics.evaluations:
        yield "lowest evaluation loss", number_text(min(metrics.evaluations.values))
    for key, title in (("tokens_per_second", "real tokens/s"), ("mfu", "MFU"), ("step_seconds", "seconds a step")):
        if (value := lately(run, key)) is not None:
            field = field_of(key)
            yield title, f"{value:.1%}" if field.shown_unit == "%" else number_text(value)
    if memory := metrics.series.get("peak_memory_gib"):
        yield "GiB at most", number_text(max(memory.values))
    if (seconds := number_of(dig(metrics.done, "seconds"))) is not None:
        yield "in all", format_duration(seconds)


def _charts(run: RunFiles) -> Iterator[str]:
    metrics = run.metrics
    if metrics.last_step is None and not metrics.evaluations:
        yield card("Charts", ['<p class="quiet">There will be some once a step has been logged.</p>'])
        return
    loss = loss_chart(run)
    yield from _section(run, "Loss", [loss] if loss else [])
    yield from _section(run, "Optimizer", optimization_charts(metrics))
    yield from _section(run, "Speed", speed_charts(metrics))
    yield from _section(run, "Memory", memory_charts(run))
    yield from _section(run, "GPU of the first rank", *constants(gpu_charts(metrics)))
    yield from _section(run, "Other numbers of the log", *constants(other_charts(metrics)))


def _section(run: RunFiles, title: str, charts: Sequence[Chart], constant: Sequence[str] = ()) -> Iterator[str]:
    """Args:
    constant: numbers that never changed, in words.
    """
    if not charts and not constant:
        return
    last = max(run.metrics.last_step or 0, *run.metrics.evaluations.steps, 0)
    parts = ['<div class="charts">', *(chart.html(0, last) for chart in charts), "</div>"] if charts else []
    if constant:
        parts.append(f'<p class="quiet constant">Throughout: {escape(" · ".join(constant))}</p>')
    yield card(title, parts)
