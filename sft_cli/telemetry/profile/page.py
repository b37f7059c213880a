"""report.html of a profile: one page that needs nothing else, no network, no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from sft_cli.telemetry.html_page import html_page
from sft_cli.telemetry.html_parts import card, figures, table
from sft_cli.telemetry.profile.charts import legend, memory_chart, stacked_bar, timeline_chart
from sft_cli.telemetry.profile.context import PARTS
from sft_cli.telemetry.profile.events import Trace
from sft_cli.telemetry.profile.kinds import KINDS
from sft_cli.telemetry.profile.lanes import Lane, lanes_of, memory_of, typical_step
from sft_cli.telemetry.profile.summary import Placement
from sft_cli.telemetry.profile.text import NO_FINDINGS, Grid, headline, tables

Document = dict[str, Any]

_STYLE = Path(__file__).with_name("page.css")


def page(content: Document, trace: Trace, placement: Placement, compared: Sequence[Grid]) -> str:
    """The whole page as text.

    Args:
        content: as in profile.json.
        compared: tables beside another profile.
    """
    step = typical_step(trace)
    lanes = list(lanes_of(trace, placement, step))
    memory = memory_of(trace, step)
    return html_page(
        f"Profile of {content['model']}",
        _STYLE,
        [
            "<h1>Where a step goes</h1>",
            f'<p class="quiet">{escape(headline(content))}</p>',
            _figures(content),
            card("Verdict", (f"<p>{escape(line)}</p>" for line in content["verdict"])),
            card("Findings, the dearest first", _findings(content)),
            card(
                "One step",
                [
                    '<p class="quiet">The profiled step of median length. Point at a colour for its time.</p>',
                    timeline_chart(lanes, step.seconds),
                    *(legend(names) for names in _legends(lanes)),
                ],
            ),
            card("Time by kind of work", _kinds(content)),
            *([card("Memory over the step", [memory_chart(memory, step.seconds)])] if memory else []),
            *(card(grid.title, [_table(grid)]) for grid in tables(content)),
            *(card(grid.title, [_table(grid)]) for grid in compared),
        ],
    )


def _legends(lanes: Sequence[Lane]) -> Iterator[list[str]]:
    """Parts of the step and kinds of work, those that are drawn."""
    drawn = {what for lane in lanes for what in lane.columns}
    yield [part for part in PARTS.values() if part in drawn]
    yield [kind for kind in KINDS if kind in drawn]


def _figures(content: Document) -> str:
    told = [("seconds a step", f"{content['step_seconds']:.3f}")]
    told.append(("real tokens a second", f"{content['tokens_per_second']:,.0f}"))
    shares = (("GPU busy", "gpu_busy"), ("MFU", "model_flops_utilization"), ("padding", "padding_share"))
    told += [(name, f"{content[key]:.0%}") for name, key in shares if content[key] is not None]
    told.append(("recomputation", f"{content['recompute_share']:.0%}"))
    told.append(("GiB at most", f"{content['peak_memory_gib']:.1f}"))
    return figures(told)


def _findings(content: Document) -> Iterator[str]:
    found, step = content["findings"], content["step_seconds"]
    if not found:
        yield f'<p class="quiet">{NO_FINDINGS}</p>'
    for one in found:
        share = min(1.0, one["costs_seconds"] / step)
        yield (
            f'<div class="finding"><b>{one["costs_seconds"]:.3f} s</b>'
            f'<span class="bar"><i style="width:{share:.1%}"></i></span>'
            f"<span>{escape(one['what'])}</span><code>{escape(one['change'])}</code></div>"
        )


def _kinds(content: Document) -> Iterator[str]:
    for side, title in (("gpu", "GPU"), ("cpu", "CPU")):
        work = content[side]
        if not work["calls"]:
            continue
        parts = [(row["name"], row["seconds"]) for row in work["kinds"]]
        total = work["seconds"]
        if side == "gpu":
            # Streams overlap, so work may take longer than the step.
            idle = content["step_seconds"] - content["gpu_busy_seconds"]
            parts, total = [*parts, ("idle", idle)], total + idle
        yield f'<p class="quiet">{title}, {work["seconds"]:.4f} s of work a step</p>{stacked_bar(parts, total)}'
        yield legend(name for name, _ in parts)


def _table(grid: Grid) -> str:
    own = next((at for at, row in enumerate(grid.rows) if row[0] == "total"), None)
    return table([*map(escape, grid.headings)], [map(escape, row) for row in grid.rows], numbers_from=1, own=own)
