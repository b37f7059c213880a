"""Checkpoints on disk: `step-00000200` is complete, a name with a leading dot is one that is being written."""

from __future__ import annotations

import re
from pathlib import Path

PROGRESS = "progress.json"
"""Beside the tensors: how far the run had come."""

_COMPLETE = re.compile(r"step-(\d{8})")


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def unfinished_path(folder: Path, step: int) -> Path:
    return folder / f".step-{step:08d}.unfinished"


def complete_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of every complete checkpoint, oldest first."""
    found = [(_COMPLETE.fullmatch(path.name), path) for path in folder.glob("step-*")]
    return sorted((int(match[1]), path) for match, path in found if match)
