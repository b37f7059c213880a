"""Checkpoints on disk: `step-00000200` is complete; names with a leading dot are on their way in or out."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

PROGRESS = "progress.json"
"""Beside the tensors: how far the run had come."""
PLAN = "plan.json"
"""Beside the tensors: the plan of the run, which a resumed one is compared with."""
BEST = "best"
"""In the folder of checkpoints: a link to the one with the lowest evaluation loss."""

_COMPLETE = re.compile(r"step-(\d{8})")
_LEFTOVER = re.compile(r"\.step-\d{8}\.(unfinished|removed)")
_SUPERSEDED = re.compile(r"\.(step-\d{8})\.superseded")


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def unfinished_path(folder: Path, step: int) -> Path:
    return folder / f".step-{step:08d}.unfinished"


def complete_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of every complete checkpoint, oldest first."""
    found = [(_COMPLETE.fullmatch(path.name), path) for path in folder.glob("step-*")]
    return sorted((int(match[1]), path) for match, path in found if match)


def leftovers(folder: Path) -> list[Path]:
    """What a process that was killed did not finish writing, or removing."""
    return sorted(path for path in folder.glob(".step-*") if _LEFTOVER.fullmatch(path.name))


def sweep(folder: Path) -> list[Path]:
    """Removes the leftovers; nobody else may be writing in the folder. Returns them."""
    found = leftovers(folder)
    for path in found:
        shutil.rmtree(path)
    return found


def remove(checkpoint: Path) -> None:
    """Removes a complete checkpoint, or nothing of it: half of one never has a complete one's name."""
    doomed = checkpoint.with_name(f".{checkpoint.name}.removed")
    shutil.rmtree(doomed, ignore_errors=True)
    checkpoint.rename(doomed)
    shutil.rmtree(doomed)


def set_aside_after(folder: Path, step: int) -> list[Path]:
    """Takes the names from checkpoints of later steps than the one that a run goes on from; returns where they lie.

    They belong to a course of the run that is left. They stay until the new course has saved one of its own.
    """
    aside = []
    for later, path in complete_checkpoints(folder):
        if later > step:
            target = path.with_name(f".{path.name}.superseded")
            shutil.rmtree(target, ignore_errors=True)
            aside.append(path.rename(target))
    return aside


def remove_set_aside(folder: Path) -> None:
    for path in folder.glob(".step-*"):
        if _SUPERSEDED.fullmatch(path.name):
            shutil.rmtree(path)


def link_best(folder: Path, step: int | None) -> None:
    """Points the link `best` at a checkpoint, in one piece; without one there is no link."""
    if step is None or not checkpoint_path(folder, step).is_dir():
        (folder / BEST).unlink(missing_ok=True)
        return
    unfinished = folder / f".{BEST}.unfinished"
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(checkpoint_path(folder, step).name)
    unfinished.replace(folder / BEST)
