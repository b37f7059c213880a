"""`sftune export`: a checkpoint as a Hugging Face model folder."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sft_cli.cli.options import DebugOption
from sft_cli.errors import BY_EXIT_CODE, CheckpointError, SftError, UsageError

if TYPE_CHECKING:
    from sft_cli.plan.plan import Plan


def export(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="RUN/checkpoints/step-N; a run folder: its newest")
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The model folder to write: new, or empty")],
    debug: DebugOption = False,
) -> None:
    """Writes a checkpoint as a Hugging Face model folder."""
    from sft_cli.checkpoint.verify import verify
    from sft_cli.plan.disk import export_bytes, require_room

    found, target = _find_checkpoint(checkpoint.absolute()), folder.absolute()
    plan_path = _plan_of(found)
    plan = _read_plan(plan_path)
    _require_inputs(plan)
    _require_free(target)
    size = export_bytes(plan.model)
    require_room(target, {"export": size}, fix="Free disk space, or choose a folder on another disk.")
    began = time.monotonic()
    verify(found)
    _run(plan_path, found, target)
    typer.echo(f"exported {found} to {target}: {size / 2**30:.2f} GiB in {time.monotonic() - began:.0f} s")


def _find_checkpoint(path: Path) -> Path:
    from sft_cli.checkpoint.layout import complete_checkpoints

    if not path.is_dir():
        what = "is a file, not a checkpoint" if path.exists() else "is not there"
        raise UsageError(f"{path} {what}", fix="Give RUN/checkpoints/step-N.")
    checkpoints = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    complete = complete_checkpoints(checkpoints)
    if complete:
        return complete[-1][1]
    if checkpoints != path:
        raise CheckpointError("this run has no complete checkpoint", where=str(path))
    if path.name.startswith(".") or not (path / ".metadata").is_file():
        raise CheckpointError(
            "this is not a complete checkpoint",
            where=str(path),
            fix="Give RUN/checkpoints/step-N of another N.",
        )
    return path


def _plan_of(checkpoint: Path) -> Path:
    from sft_cli.checkpoint.layout import PLAN

    path = checkpoint.parent.parent / "plan.json"
    if not path.is_file():
        path = checkpoint / PLAN
    if not path.is_file():
        raise UsageError(
            f"{path} is not there, which says what model the checkpoint is of",
            where=str(checkpoint),
            fix="Give the checkpoint where its run wrote it: RUN/checkpoints/step-N.",
        )
    return path


def _read_plan(path: Path) -> Plan:
    from pydantic import ValidationError

    from sft_cli.plan.plan import Plan

    try:
        return Plan.read(path)
    except (ValidationError, UnicodeDecodeError) as error:
        raise UsageError(
            "this plan.json is not one that this version of sftune wrote",
            where=str(path),
            fix="Use the version that trained the run.",
        ) from error


def _require_inputs(plan: Plan) -> None:
    """UsageError where what an export takes from elsewhere has gone since the run."""
    needed = {
        "the model that the run began with": plan.model.folder if plan.model.weights == "pretrained" else None,
        "its tokenizer": plan.tokenizer_folder,
        "its chat template": plan.recipe.model.chat_template,
        "the model's own code": plan.model.code_folder,
    }
    for what, place in needed.items():
        if place is not None and not os.path.exists(place):
            raise UsageError(
                f"{what} is not there any more",
                where=place,
                fix="Put it back: an export takes parts of it along.",
            )


def _require_free(target: Path) -> None:
    if target.is_dir():
        if any(target.iterdir()):
            raise UsageError("the folder is not empty", where=str(target), fix="Give a new folder.")
        if os.path.ismount(target):
            raise UsageError("the folder is where a disk is mounted", where=str(target), fix="Give a folder inside it.")
    elif os.path.lexists(target):
        raise UsageError("there is a file of this name", where=str(target), fix="Give a new folder.")


def _run(plan_path: Path, checkpoint: Path, target: Path) -> None:
    """In a process of its own, as the command line has no torch."""
    from sft_cli.plan.child_process import ask, last_words

    with tempfile.TemporaryDirectory(prefix="sftune-") as scratch:
        result = Path(scratch, "result.json")
        options = {
            "plan": plan_path,
            "checkpoint": checkpoint,
            "target": target,
            "parent": os.getpid(),
            "result": result,
        }
        child = ask(
            ["-m", "sft_cli.worker.export_checkpoint", *(f"--{name}={value}" for name, value in options.items())],
            limit_seconds=None,
            environment={"CUDA_VISIBLE_DEVICES": ""},
        )
        if result.is_file():
            failure = json.loads(result.read_text(encoding="utf-8"))
            raise BY_EXIT_CODE[failure["exit_code"]](failure["what"], where=failure["where"], fix=failure["fix"])
    if child.returncode:
        said = last_words(child.stderr, child.returncode)
        raise SftError(f"the process that exports failed: {said}", where=str(checkpoint))
