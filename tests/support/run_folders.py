"""Run folders to report on, without a run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sft_cli.telemetry.report.run_files import Places, RunFiles, read_run

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)

Line = dict[str, Any] | str


def step(number: int, **changes: Any) -> dict[str, Any]:
    """A line of a training step."""
    line = {
        "step": number, "epoch": 0.5, "loss": 2.0 + 1 / number, "grad_norm": 1.5, "learning_rate": 1e-5,
        "tokens": 90, "supervised_tokens": 50, "slots": 100, "tokens_per_second": 1000.0, "mfu": None,
        "step_seconds": 0.5, "data_wait_seconds": 0.01, "peak_memory_gib": 3.25, "batch_hash": "5e1f",
    }  # fmt: skip
    return {**line, **changes}


def write_run(
    folder: Path, lines: Iterable[Line] = (), events: Iterable[Line] = (), recipe: str = "", **documents: Any
) -> Path:
    """A run folder; lines that are text are written as they are.

    Args:
        documents: `plan`, `kernels`, `exactness`, `data`.
    """
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    for name, content in (("metrics.jsonl", lines), ("logs/events.jsonl", events)):
        (folder / name).write_text("".join(map(_line, content)))
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    (folder / "recipe.yaml").write_text(recipe)
    return folder


def run_in(folder: Path, *, is_on: bool | None = False) -> RunFiles:
    """The same, read."""
    places = Places(
        folder=folder,
        recipe=folder / "recipe.yaml",
        plan=folder / "plan.json",
        kernels=folder / "kernels.json",
        exactness=folder / "exactness.json",
        data=folder / "data.json",
        metrics=folder / "metrics.jsonl",
        events=folder / "logs" / "events.jsonl",
        profile=folder / "profile" / "report.html",
    )
    return read_run(places, is_on=is_on, now=NOW)


def _line(content: Line) -> str:
    return content if isinstance(content, str) else json.dumps(content) + "\n"
