"""`sftune report`: a run folder as one HTML page."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sft_cli.cli.options import DebugOption
from sft_cli.errors import CheckpointError, UsageError
from sft_cli.plan.synced import replace_text

if TYPE_CHECKING:
    from sft_cli.launch.run_folder import RunFolder

_MOST_NAMES = 8


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The output_dir of a run, finished or not")],
    debug: DebugOption = False,
) -> None:
    """Writes report.html: a run on one page, finished or not."""
    from sft_cli.launch.folder_lock import is_held
    from sft_cli.launch.log_files import event_log
    from sft_cli.launch.run_folder import RunFolder
    from sft_cli.telemetry.report.page import page
    from sft_cli.telemetry.report.run_files import Places, read_run
    from sft_cli.telemetry.report.state import state_of

    folder = RunFolder(run)
    _require_run(folder)
    places = Places(
        folder=run,
        recipe=folder.recipe_yaml,
        plan=folder.plan_json,
        kernels=folder.kernels_json,
        exactness=folder.exactness_json,
        data=folder.data_json,
        metrics=folder.metrics_jsonl,
        events=event_log(folder.logs),
        profile=folder.profile / "report.html",
    )
    found = read_run(places, is_on=is_held(run), now=datetime.now().astimezone())
    _write(folder.report_html, page(found))
    step = "no step yet" if found.metrics.last_step is None else f"step {found.metrics.last_step}"
    typer.echo(f"wrote {folder.report_html}: {state_of(found).word}, {step}")


def _require_run(folder: RunFolder) -> None:
    """
    Raises:
        UsageError: it is no run folder.
    """
    path = folder.path
    if not path.is_dir():
        what = "is a file, not a run folder" if path.exists() else "is not there"
        raise UsageError(f"{path} {what}", fix="Give the output_dir of a run.")
    if _is_run(folder):
        return
    inside = sorted(name for name in os.listdir(path) if _is_run(type(folder)(path / name)))
    around = next((parent for parent in path.absolute().parents[:2] if _is_run(type(folder)(parent))), None)
    fix = "Give the output_dir of a run: it holds plan.json and metrics.jsonl."
    if inside:
        more = ", ..." if len(inside) > _MOST_NAMES else ""
        fix = f"Give one of the runs in it: {', '.join(inside[:_MOST_NAMES])}{more}."
    elif around is not None:
        fix = f"It is a part of the run {around}: give that."
    raise UsageError("this folder holds no run", where=str(path), fix=fix)


def _is_run(folder: RunFolder) -> bool:
    return folder.plan_json.is_file() or folder.metrics_jsonl.is_file()


def _write(path: Path, text: str) -> None:
    """In one piece: a browser may be showing the page before."""
    try:
        replace_text(path, text, errors="backslashreplace")
    except OSError as error:
        raise CheckpointError(
            f"the page can't be written: {error.strerror}",
            where=str(path),
            fix="Free disk space, or ask for the right to write there.",
        ) from error
