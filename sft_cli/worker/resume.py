"""A run that goes on: its checkpoint verified, then weights, position, counters and random states as they were."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from sft_cli.checkpoint.layout import set_aside_after
from sft_cli.checkpoint.progress import Progress
from sft_cli.checkpoint.state import restore_random, restore_state, training_generators
from sft_cli.checkpoint.verify import require_checksums, require_sizes
from sft_cli.data.loader import Loader, Steps
from sft_cli.data.prefetch import prefetched
from sft_cli.errors import SftError
from sft_cli.launch.resume import Resume
from sft_cli.launch.run_folder import RunFolder
from sft_cli.plan.plan import Plan
from sft_cli.plan.resumption import differences
from sft_cli.telemetry.meter import Totals
from sft_cli.telemetry.metrics_file import cut_back, logged_steps
from sft_cli.train.best import Best
from sft_cli.train.position import data_position
from sft_cli.train.replay import EXACT, ROUNDED, replay
from sft_cli.train.report import Report
from sft_cli.train.step import TrainStep


def trusted_progress(checkpoint: Path) -> Progress:
    """How far the run had come, once every file is known to be what was written. Called on every rank.

    Each rank reads its share of the files, which are in the system's cache when the tensors are read after that.

    Raises:
        CheckpointError: a file is damaged; on every rank.
    """
    problem: SftError | None = None
    try:
        require_sizes(checkpoint)
        require_checksums(checkpoint, share=dist.get_rank(), shares=dist.get_world_size())
    except SftError as error:  # raised below, on every rank
        problem = error
    problems: list[SftError | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    for found in problems:
        if found is not None:
            raise found
    return Progress.read(checkpoint)


def totals(progress: Progress | None) -> Totals | None:
    """The meter's, as `counters_of` had them."""
    if progress is None:
        return None
    whole = ("steps", "tokens", "supervised_tokens", "slots")
    return Totals(**{name: int(value) if name in whole else value for name, value in progress.counters.items()})


def best(progress: Progress | None, patience: int | None) -> Best:
    if progress is None:
        return Best(patience)
    return Best(patience, progress.best_loss, progress.best_step, progress.evaluations_since_best)


def replay_logged(
    resume: Resume, progress: Progress, plan: Plan, loader: Steps, train_step: TrainStep, report: Report
) -> None:
    """What `--verify` asks for. Weights and optimizer are those of the checkpoint to go on from, before and after.

    Args:
        progress: of that checkpoint.
        loader: of the run that goes on.

    Raises:
        CheckpointError: a step is not what it was; on every rank.
    """
    if resume.replay_from is None:
        return
    if resume.replay_from != resume.checkpoint:
        progress = trusted_progress(resume.replay_from)
        restore_state(resume.replay_from, train_step.model, train_step.optimizer)
        train_step.after_update()  # float8's scales are those of the weights
    restore_random(resume.replay_from, training_generators(train_step.device))
    assert isinstance(loader, Loader), "the launcher has refused to replay a stream"
    loader = loader.beginning_at(data_position(progress))
    wanted = resume.replay_steps
    steps = (step for step, _ in zip(prefetched(loader.steps(progress.step)), range(wanted), strict=False))
    before = Plan.read(resume.replay_from / "plan.json")
    is_exact = plan.world.device == "cpu" and not differences(before, plan)
    logged = logged_steps(RunFolder(Path(plan.recipe.output_dir)).metrics_jsonl)
    compared = replay(steps, train_step, logged, EXACT if is_exact else ROUNDED)
    sameness = "bit for bit" if is_exact else "as closely as rounding allows"
    outcome = (
        f"{compared} compared, equal {sameness}" if compared else "none compared, as metrics.jsonl has none of them"
    )
    report.say(f"replayed steps {progress.step + 1} to {progress.step + wanted}: {outcome}")
    restore_state(resume.checkpoint, train_step.model, train_step.optimizer)
    train_step.after_update()
    report.forget()


def take_up(resume: Resume, progress: Progress, folder: RunFolder, train_step: TrainStep, report: Report) -> None:
    """The last thing before the first step: random states, and a run folder that knows nothing of later steps.

    The generators are seeded, as those of a run that begins: a rank may be new.
    """
    lacking = restore_random(resume.checkpoint, training_generators(train_step.device))
    if lacking:
        report.say(f"random states of this rank begin anew: {', '.join(lacking)}")
    report.train_loss, report.eval_loss = progress.train_loss, progress.eval_loss
    if dist.get_rank() == 0:
        cut_back(folder.metrics_jsonl, progress.step, owes_evaluation=progress.owes_evaluation)
        for path in set_aside_after(folder.checkpoints, progress.step):
            report.say(f"set aside until the next checkpoint is complete: {path}")


def rows_of_all_ranks(rows: Sequence[int]) -> Sequence[int]:
    """Row ids of a step, of every rank."""
    of_ranks: list[Sequence[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(of_ranks, rows)
    return [row for of_rank in of_ranks for row in of_rank]
