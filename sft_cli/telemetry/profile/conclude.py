"""From the trace that the profiler left to everything that `sftune profile` gives."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from sft_cli.plan.plan import Plan
from sft_cli.telemetry.profile import document, page
from sft_cli.telemetry.profile.compare import compare
from sft_cli.telemetry.profile.events import read_trace
from sft_cli.telemetry.profile.facts import Facts
from sft_cli.telemetry.profile.findings import find
from sft_cli.telemetry.profile.show import show
from sft_cli.telemetry.profile.summary import locate, summarise
from sft_cli.telemetry.profile.verdict import verdict

TRACE, REPORT = "trace.json.gz", "report.html"


def conclude(folder: Path, exported: Path, plan: Plan, facts: Facts, stream: TextIO | None) -> None:
    """Writes profile.json and report.html beside trace.json.gz, and shows the profile.

    Args:
        folder: the run's `profile` folder, with trace.json.gz.
        exported: the trace with all its events; trace.json.gz, unless that had to be shortened.
        stream: where to show it.

    Raises:
        UsageError: the profile to compare with is gone.
    """
    asked = plan.profiling
    before = None if asked is None or asked.compare is None else document.read(Path(asked.compare))
    trace = read_trace(exported)
    placement = locate(trace)
    summary = summarise(trace, placement, facts)
    content = document.document(summary, plan, find(summary, plan), verdict(summary, plan))
    document.write(folder / document.NAME, content)
    compared = [] if before is None else list(compare(before, content))
    text = page.page(content, trace, placement, compared)
    (folder / REPORT).write_text(text, encoding="utf-8")
    if stream is not None:
        show(stream, content, compared, _paths(folder, facts))


def _paths(folder: Path, facts: Facts) -> list[str]:
    kept = "" if facts.traced_share == 1 else f" (the first {facts.traced_share:.0%} of the time: all is too large)"
    lines = [
        f"{folder / document.NAME}   every number",
        f"{folder / TRACE}  opens in https://ui.perfetto.dev{kept}",
        f"{folder / REPORT}    one page",
    ]
    if facts.memory_snapshot is not None:
        lines.append(f"{folder / facts.memory_snapshot}  opens in https://docs.pytorch.org/memory_viz")
    return lines
