"""The real command line, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.command_line import Ended

SHARED = Path(__file__).parents[3] / "shared"
"""Real data and tokenizers, where they are at hand."""
CACHE_VARIABLE = "SFTUNE_TESTS_CACHE"
"""Names a folder for tokenised data that all processes of a test session share."""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "sft_cli", *map(str, arguments)]


def sftune(*arguments: object, cwd: Path, timeout_seconds: float = 240, **environment: str) -> Ended:
    ended = subprocess.run(
        command(*arguments),
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def training_steps(run: Path) -> list[dict[str, Any]]:
    """The lines with `step` and `loss` and without `event`."""
    return [line for line in read_metrics(run) if "step" in line and "loss" in line and "event" not in line]


def write_recipe(path: Path, **sections: Any) -> Path:
    """JSON is YAML."""
    path.write_text(json.dumps(sections), encoding="utf-8")
    return path


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def tiny(folder: Path, **changes: str) -> list[str]:
    """Options that make the built-in recipe short: few steps, no evaluation, tokens that an earlier test has made."""
    keys = {
        "output_dir": str(folder / "run"),
        "data.cache_dir": os.environ[CACHE_VARIABLE],
        "data.eval": "[]",
        "evaluate.at_start": "false",
        "evaluate.every_steps": "null",
        "train.max_steps": "4",
        "train.tokens_per_step": "1024",
        **changes,
    }
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
