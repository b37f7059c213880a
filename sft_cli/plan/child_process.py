"""A Python that planning asks something: it imports this sft_cli, and nothing that lies around."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PACKAGE_PARENT = Path(__file__).parents[2]


def ask(
    arguments: Sequence[str],
    *,
    limit_seconds: float | None,
    question: str = "",
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs this Python with `arguments` and waits for its end, whatever its exit code.

    Args:
        limit_seconds: None: as long as it takes.
        question: what it reads from its standard input.
        environment: variables beside those of `asking_environment`.

    Raises:
        subprocess.TimeoutExpired: it took longer than `limit_seconds`, and was killed.
    """
    return subprocess.run(
        [sys.executable, *arguments],
        input=question,
        env={**asking_environment(), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=limit_seconds,
        check=False,
    )


def last_words(said: str, exit_code: int) -> str:
    """Of a child that failed: the last line of what it wrote to its standard error, where an exception stands."""
    return (said.strip().splitlines() or [f"exit code {exit_code}"])[-1].strip()[:300]


def asking_environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`base` for a child that asks no hub and imports nothing from the working directory.

    That may be a model's own folder, and a torch.py in it is code that nobody trusts.
    """
    return {**base, "PYTHONSAFEPATH": "1", "PYTHONPATH": python_path(base), "HF_HUB_OFFLINE": "1"}


def python_path(base: Mapping[str, str]) -> str:
    """PYTHONPATH with which a child imports the same sft_cli as this process, also from a checkout not installed."""
    installed = {Path(folder) for folder in [*site.getsitepackages(), site.getusersitepackages()]}
    ours = [] if _PACKAGE_PARENT in installed else [str(_PACKAGE_PARENT)]
    return os.pathsep.join([*ours, *filter(None, [base.get("PYTHONPATH")])])
