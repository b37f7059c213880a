"""What `train --resume` and `--resume-from` go on from, and whether this recipe may."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from sft_cli.checkpoint.layout import PLAN, complete_checkpoints
from sft_cli.checkpoint.progress import Progress
from sft_cli.checkpoint.verify import require_sizes
from sft_cli.errors import CheckpointError, UsageError
from sft_cli.launch.resume import Resume
from sft_cli.launch.run_folder import RunFolder
from sft_cli.plan.plan import Plan
from sft_cli.plan.resumption import MayChange, differences
from sft_cli.recipe.places import Places
from sft_cli.recipe.problems import Problem, raise_for
from sft_cli.telemetry.metrics_file import is_done, logged_steps


@dataclass(frozen=True)
class Flags:
    """Of the command line."""

    resume: bool = False
    resume_from: Path | None = None
    verify: int | None = None
    overwrite: bool = False

    @property
    def goes_on(self) -> bool:
        return self.resume or self.resume_from is not None

    def keeps_folder(self, output: Path) -> bool:
        """Whether the run that `output` holds is the one that goes on."""
        if self.resume_from is None:
            return self.resume
        return self.resume_from.absolute().parent.resolve() == RunFolder(output).checkpoints.resolve()

    def check(self, output: Path) -> None:
        """
        Raises:
            UsageError: they contradict each other.
        """
        if self.resume and self.resume_from is not None:
            raise UsageError(
                "--resume takes the newest checkpoint, --resume-from the one named", fix="Give one of them."
            )
        if self.overwrite and self.keeps_folder(output):
            fix = "Give one of them; --resume-from a copy of a checkpoint elsewhere goes with --overwrite."
            raise UsageError("--overwrite would delete what the run is to go on from", where=str(output), fix=fix)
        if self.verify is not None and not self.resume:
            raise UsageError("--verify replays a run before it goes on", fix="Add --resume.")
        if self.verify is not None and self.verify < 1:
            raise UsageError(f"{self.verify} steps can't be replayed", where="--verify", fix="Write 1 or more.")


@dataclass(frozen=True)
class Start:
    """A checkpoint that is whole as far as names and sizes tell."""

    resume: Resume
    progress: Progress
    before: Plan
    """Of the run that wrote it."""


def find_start(output: Path, flags: Flags, *, is_stream: bool) -> Start | None:
    """None where there is nothing to go on from, or it isn't asked for.

    Args:
        is_stream: `data.streaming`.

    Raises:
        CheckpointError: the checkpoint that would be taken is damaged, or not one.
        UsageError: `--verify` asks for more steps than can be replayed.
    """
    folder = RunFolder(output)
    if flags.resume_from is not None:
        checkpoint = flags.resume_from.resolve()
    elif flags.resume and (found := complete_checkpoints(folder.checkpoints)):
        checkpoint = found[-1][1].absolute()
    else:
        return None
    require_sizes(checkpoint)
    if flags.verify is not None and is_stream:
        fix = "Resume without --verify: the stream is read anew up to the checkpoint."
        raise UsageError("a stream is read once and can't be replayed", where="--verify", fix=fix)
    resume = Resume(checkpoint) if flags.verify is None else _with_replay(folder, checkpoint, flags.verify)
    return Start(resume, Progress.read(checkpoint), _plan_of(checkpoint))


def saved_now(output: Path) -> set[tuple[Path, int]]:
    """Every complete checkpoint of a run folder, with what tells it from another one of the same name."""
    return {(path, path.stat().st_ino) for _, path in complete_checkpoints(RunFolder(output).checkpoints)}


def restart_point(output: Path, first: Resume | None, before: set[tuple[Path, int]]) -> Resume | None:
    """What a run restarts from after a rank was lost: the newest checkpoint that it has saved itself, else what it had
    begun with; None: step 0, and metrics.jsonl begins anew.

    Args:
        first: what it had begun with.
        before: `saved_now` at its beginning.

    Raises:
        CheckpointError: that checkpoint is damaged.
    """
    own = [path for path, inode in sorted(saved_now(output)) if (path, inode) not in before]
    if own:
        require_sizes(own[-1])
        return Resume(own[-1].absolute())
    if first is None:
        RunFolder(output).metrics_jsonl.unlink(missing_ok=True)
    return first


def require_same_run(start: Start, plan: Plan, places: Places) -> list[str]:
    """Passes a plan that may go on from a checkpoint; returns lines that tell what can't be as it was.

    Raises:
        UsageError: a key that may not change has; all such keys in one error.
    """
    found = differences(start.before, plan)
    fix = "Give it the old value, or start a new run: another output_dir, or --overwrite."
    refused = [
        Problem(one.key, f"can't change on resume: {one}", fix)
        for one in found
        if one.rule.may_change is MayChange.NEVER
    ]
    ranks = start.progress.ranks
    if start.progress.data_epoch is None and ranks != plan.world.ranks:
        what = f"{ranks} ranks had begun to read this stream, and {plan.world.ranks} can't go on with it"
        refused.append(Problem("launch.gpus", what, f"Resume on {ranks} ranks."))
    raise_for(refused, places, UsageError)
    told = [f"{one.key}: {one}" for one in found]
    if start.before.steps != plan.steps:
        told.append(f"steps in all: {start.before.steps} before, {plan.steps} now; the schedule ends there")
    return told


def is_finished(start: Start, plan: Plan) -> bool:
    """Whether nothing is left to do: the last step taken, the export written, the end told."""
    progress, recipe, folder = start.progress, plan.recipe, RunFolder(Path(plan.recipe.output_dir))
    patience = recipe.evaluate.patience
    is_out_of_patience = patience is not None and progress.evaluations_since_best >= patience
    is_at_end = progress.step >= (plan.steps or 0) or is_out_of_patience
    is_exported = folder.export.is_dir() or not recipe.checkpoint.export
    return is_at_end and is_exported and is_done(folder.metrics_jsonl)


def _plan_of(checkpoint: Path) -> Plan:
    try:
        return Plan.read(checkpoint / PLAN)
    except (OSError, ValidationError) as error:
        raise CheckpointError(
            f"the plan in this checkpoint can't be read: {str(error).splitlines()[0]}",
            where=str(checkpoint / PLAN),
            fix="Resume with the version of sftune that wrote it, or name another checkpoint with --resume-from.",
        ) from error


def _with_replay(folder: RunFolder, checkpoint: Path, steps: int) -> Resume:
    """Takes the newest checkpoint that as many logged steps follow."""
    logged = logged_steps(folder.metrics_jsonl)
    last = max(logged, default=0)
    found = complete_checkpoints(folder.checkpoints)
    for step, path in reversed(found):
        if step + steps <= last:
            require_sizes(path)
            return Resume(checkpoint, path.absolute(), steps)
    most = last - found[0][0]
    raise UsageError(
        f"{steps} steps can't be replayed: {most} are logged after the oldest checkpoint, of step {found[0][0]}",
        where="--verify",
        fix=f"Write --verify {most}." if most else "Let the run go on first; checkpoint.keep says how many stay.",
    )
