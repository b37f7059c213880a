"""The run folder: what is in it, and who may write there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sft_cli.errors import CheckpointError, SftError, UsageError
from sft_cli.launch.folder_lock import FolderLock
from sft_cli.launch.log_files import launcher_log, rank_log
from sft_cli.plan.plan import Plan, World


@dataclass(frozen=True)
class RunFolder:
    """Names of everything a run writes."""

    path: Path

    @property
    def recipe_yaml(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def plan_json(self) -> Path:
        return self.path / "plan.json"

    @property
    def kernels_json(self) -> Path:
        return self.path / "kernels.json"

    @property
    def exactness_json(self) -> Path:
        return self.path / "exactness.json"

    @property
    def data_json(self) -> Path:
        return self.path / "data.json"

    @property
    def metrics_jsonl(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def trackers(self) -> Path:
        return self.path / "trackers"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def export(self) -> Path:
        return self.path / "export"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def profile(self) -> Path:
        return self.path / "profile"

    @property
    def report_html(self) -> Path:
        return self.path / "report.html"

    @property
    def contents(self) -> tuple[Path, ...]:
        """All of the above, and what may be left of it."""
        return (
            self.recipe_yaml,
            self.plan_json,
            self.kernels_json,
            self.exactness_json,
            self.data_json,
            self.metrics_jsonl,
            self.trackers,
            self.checkpoints,
            self.export,
            # Of an export that was cut off (`model/replaced_folder.py`).
            self.path / ".export.unfinished",
            self.path / ".export.old",
            self.logs,
            self.profile,
            self.report_html,
        )

    def holds_run(self) -> bool:
        """A run has been trained here. A plan alone (`--dry-run`), or what a run left that failed in its first step
        (logs, a metrics.jsonl without a line), is none."""
        has_metrics = self.metrics_jsonl.exists() and self.metrics_jsonl.stat().st_size > 0
        return has_metrics or self.checkpoints.exists()


@dataclass(frozen=True)
class OpenRun:
    """A run folder that is this process's until it is closed."""

    folder: RunFolder
    plan_path: Path
    """What the workers read. Not in the folder for a dry run beside an earlier run, whose plan stays."""
    logs: Path
    lock: FolderLock
    """`lock.keep_through_exec()` before `exec_worker`."""


def require_free(path: Path, overwrite: bool) -> None:
    """Looks and touches nothing, so that a long preparation does not end with this error.

    Raises:
        UsageError: the folder holds a run, and it may not be overwritten; or a file has its name; or its recipe.yaml
            was not written by a run.
        CheckpointError: it can't be created, or not written to.
    """
    with _disk_errors(path):  # a name that is too long, say
        _require_writable(path)
        _require_no_run(RunFolder(path), overwrite)


@contextmanager
def open_run(
    path: Path, recipe_yaml: str, plan: Plan, overwrite: bool, *, dry_run: bool = False, resume: bool = False
) -> Iterator[OpenRun]:
    """Creates the folder, locks it, and writes recipe.yaml and plan.json; unlocks it on leaving.

    Args:
        recipe_yaml: text of the recipe, complete.
        overwrite: removes what an earlier run wrote here, and nothing else.
        dry_run: writes plan.json alone, and not even that beside an earlier run; logs go to a temporary folder,
            which stays only for an error that names one.
        resume: goes on in the folder of an earlier run, of which all stays but recipe.yaml and plan.json.

    Raises:
        UsageError: as `require_free`; or another run is on in this folder; or the recipe reads what would be removed.
        CheckpointError: the folder can't be written to.
    """
    folder = RunFolder(path)
    _require_writable(path)
    with _disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        # Before the look inside: of two starts at the same time, the second must not find the folder still empty.
        lock = FolderLock.take(path)
    try:
        if dry_run:
            with _dry_run(folder, plan, lock) as run:
                yield run
            return
        if not (resume and folder.holds_run()):
            _require_no_run(folder, overwrite)
        if overwrite:
            _require_no_input_inside(folder, plan)
        with _disk_errors(path):
            if overwrite:
                _remove_run(folder, plan.world)
            # The plan first: a recipe alone is taken for somebody's own, also by a launcher on another machine.
            plan.write(folder.plan_json)
            folder.recipe_yaml.write_text(recipe_yaml, encoding="utf-8")
        yield OpenRun(folder, folder.plan_json, folder.logs, lock)
    finally:
        lock.release()


@contextmanager
def _dry_run(folder: RunFolder, plan: Plan, lock: FolderLock) -> Iterator[OpenRun]:
    scratch = Path(tempfile.mkdtemp(prefix="sftune-dry-run-"))
    plan_path = scratch / "plan.json" if folder.holds_run() else folder.plan_json
    with _disk_errors(folder.path):
        plan.write(plan_path)
    try:
        yield OpenRun(folder, plan_path, scratch / "logs", lock)
    except SftError as error:
        if str(scratch) not in str(error):
            shutil.rmtree(scratch)
        raise
    shutil.rmtree(scratch)


def _require_writable(path: Path) -> None:
    existing = path
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise CheckpointError(
            "the output folder can't be created: this is not a folder",
            where=str(existing),
            fix="Choose another output_dir.",
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise CheckpointError(
            "the output folder can't be written to: no permission",
            where=str(existing),
            fix="Choose another output_dir, or make this one writable.",
        )


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"the output folder can't be written to: {error.strerror}",
            where=str(error.filename or path),
            fix="Choose another output_dir, or make room or permission for this one.",
        ) from error


def _require_no_run(folder: RunFolder, overwrite: bool) -> None:
    if folder.holds_run():
        if not overwrite:
            raise UsageError(
                "the output folder already holds a run",
                where=str(folder.path),
                fix="Add --resume to go on with it or --overwrite to delete it, or choose another output_dir.",
            )
    elif folder.recipe_yaml.exists() and not folder.plan_json.exists():
        raise UsageError(
            "this recipe was not written by a run, and a run here would replace it",
            where=str(folder.recipe_yaml),
            fix="Choose another output_dir.",
        )


def _require_no_input_inside(folder: RunFolder, plan: Plan) -> None:
    """A run that starts from the export of the one it overwrites would delete its own model first."""
    model, data = plan.recipe.model, plan.recipe.data
    inputs = [model.path, model.tokenizer, model.chat_template, plan.model.folder, plan.tokenizer_folder]
    inputs += [source.path for source in (*data.train, *data.eval)]
    for text in filter(None, inputs):
        for doomed in folder.contents:
            if Path(text).is_relative_to(doomed):
                raise UsageError(
                    f"--overwrite would delete {doomed}, which the recipe reads",
                    where=text,
                    fix="Choose another output_dir, or move what the recipe reads.",
                )


def _remove_run(folder: RunFolder, world: World) -> None:
    for path in folder.contents:
        if path == folder.logs and path.is_dir():
            _clear_logs(path, world)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _clear_logs(logs: Path, world: World) -> None:
    """Emptied and not removed: ranks that torchrun or srun started, and other nodes, may have opened theirs already."""
    kept = {rank_log(logs, rank) for rank in range(world.ranks)}
    kept |= {launcher_log(logs, node) for node in range(1, world.nodes)}
    for path in logs.iterdir():
        if path in kept:
            os.truncate(path, 0)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
