"""profile.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sft_cli.errors import UsageError
from sft_cli.plan.plan import Plan
from sft_cli.telemetry.profile.findings import Finding, reached_tflops
from sft_cli.telemetry.profile.kinds import GEMM
from sft_cli.telemetry.profile.operations import Row, Table
from sft_cli.telemetry.profile.summary import Summary

NAME = "profile.json"

Document = dict[str, Any]


def document(summary: Summary, plan: Plan, findings: Sequence[Finding], words: Sequence[str]) -> Document:
    """Everything of a profile; times are seconds of one step.

    Args:
        words: the verdict.
    """
    facts, launching = summary.facts, summary.launching
    first = plan.profiling.first_step if plan.profiling is not None else 1
    return {
        "steps": summary.steps,
        "step_seconds": summary.step_seconds,
        "cpu": _table(summary.cpu),
        "gpu": _table(summary.gpu),
        "gpu_busy": summary.gpu_busy,
        "launch_bound": summary.launch_bound,
        "padding_share": facts.padding_share,
        "recompute_share": summary.recompute_share,
        "exposed_communication_seconds": summary.exposed_communication_seconds,
        "model_flops_utilization": facts.model_flops_utilization,
        "findings": [
            {"what": found.what, "costs_seconds": found.costs_seconds, "change": found.change} for found in findings
        ],
        "verdict": list(words),
        "profiled_steps": list(range(first, first + summary.steps)),
        "unprofiled_step_seconds": facts.unprofiled_step_seconds,
        "data_wait_seconds": summary.data_wait_seconds,
        "enqueue_seconds": None if launching is None else launching.enqueue_seconds,
        "gpu_busy_seconds": summary.gpu_busy_seconds if summary.has_gpu else None,
        "gpu_starved_seconds": None if launching is None else launching.starved_seconds,
        "gemm": {
            "share": summary.kind_share(GEMM),
            "tflops": reached_tflops(summary, plan),
            "ceiling_tflops": facts.gemm_tflops,
        },
        "tokens_per_second": facts.tokens / summary.step_seconds,
        "tokens": facts.tokens,
        "slots": facts.slots,
        "peak_memory_gib": facts.peak_memory_gib,
        "memory_snapshot": facts.memory_snapshot,
        "traced_share": facts.traced_share,
        "model": plan.recipe.model.path,
        "device": plan.world.gpu_name or "CPU",
        "ranks": plan.world.ranks,
    }


def write(path: Path, content: Document) -> None:
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read(path: Path) -> Document:
    """A profile of another run.

    Args:
        path: profile.json, the folder that holds it, or a run folder.

    Raises:
        UsageError: there is none.
    """
    found = next((file for file in (path, path / NAME, path / "profile" / NAME) if file.is_file()), None)
    if found is None:
        raise UsageError(
            "there is no profile.json", where=str(path), fix="Give a profile.json, or the folder of a profiled run."
        )
    try:
        content = json.loads(found.read_text(encoding="utf-8"))
        is_profile = isinstance(content, dict) and {"step_seconds", "cpu", "gpu"} <= content.keys()
    except (json.JSONDecodeError, UnicodeDecodeError):
        is_profile = False
    if not is_profile:
        raise UsageError("this is not a profile that sftune wrote", where=str(found), fix="Give a profile.json.")
    return {**content, "path": str(found)}


def _table(table: Table) -> Document:
    return {
        "calls": table.calls,
        "seconds": table.seconds,
        "top": [_row(row) for row in table.top],
        "kinds": [_row(row) for row in table.kinds.values()],
        "parts": [_row(row) for row in table.parts.values()],
    }


def _row(row: Row) -> Document:
    return {"name": row.name, "calls": row.calls, "seconds": row.seconds}
