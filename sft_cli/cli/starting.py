"""From a plan to its workers, for `train` and `profile`: a function for each place that a process may have in a run."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from sft_cli.cli.resume import Flags, Start
    from sft_cli.launch.join import Joined
    from sft_cli.launch.meeting import Meeting
    from sft_cli.launch.nodes import Nodes
    from sft_cli.launch.resume import Resume
    from sft_cli.plan.plan import Plan
    from sft_cli.recipe.load import Loaded


def with_nodes(loaded: Loaded, nodes: Nodes) -> Loaded:
    """Slurm may have said how many machines there are; which of them this is is no part of the run."""
    launch = loaded.recipe.launch.model_copy(update={"nodes": nodes.count, "node_rank": None})
    return replace(loaded, recipe=loaded.recipe.model_copy(update={"launch": launch}))


def meet(nodes: Nodes, plan: Plan, start: Start | None, *, dry_run: bool) -> Meeting:
    """What this machine's launcher tells the others', and asks of them."""
    from importlib.metadata import version

    from sft_cli.launch.meeting import Meeting, agreement

    words = [] if start is None else start.resume.arguments()
    card = agreement(plan, version=version("sftune"), start=" ".join(words), run="dry" if dry_run else "whole")
    shares = plan.recipe.checkpoint.enabled and not dry_run
    return Meeting(nodes, plan.world.ranks_per_node, card, plan.recipe.output_dir if shares else None)


def run_beside(plan: Plan, start: Start | None, meeting: Meeting | None, *, dry_run: bool) -> int:
    """Runs the ranks of a machine other than the first, which has the run folder; the command's exit code."""
    from sft_cli.launch.run_folder import RunFolder
    from sft_cli.launch.supervise import run_workers

    with tempfile.TemporaryDirectory(prefix="sftune-node-") as own:
        logs = Path(tempfile.mkdtemp(prefix="sftune-")) if dry_run else RunFolder(Path(plan.recipe.output_dir)).logs
        plan_path = Path(own, "plan.json")
        plan.write(plan_path)
        resume = None if start is None else start.resume
        saves = plan.recipe.checkpoint.enabled and not dry_run
        exit_code = run_workers(
            plan_path, plan.world, logs, dry_run=dry_run, saves=saves, resume=resume, meeting=meeting
        )
    if dry_run:
        shutil.rmtree(logs)  # not in a `finally`: the error of a failed one names a log in there
    return exit_code


def run_first(
    loaded: Loaded,
    plan: Plan,
    joined: Joined | None,
    start: Start | None,
    flags: Flags,
    meeting: Meeting | None,
    *,
    dry_run: bool,
) -> int:
    """Opens the run folder and starts the workers in it; the command's exit code.

    Args:
        dry_run: of a profile too: nothing that blocks a later run stays.
    """
    from sft_cli.checkpoint.layout import sweep
    from sft_cli.cli.disk import require_room
    from sft_cli.cli.resume import restart_point, saved_now
    from sft_cli.launch.event_log import EventLog
    from sft_cli.launch.join import exec_worker
    from sft_cli.launch.log_files import event_log
    from sft_cli.launch.restarts import with_restarts
    from sft_cli.launch.run_folder import open_run
    from sft_cli.launch.supervise import run_workers
    from sft_cli.recipe.dump import to_yaml

    output = Path(loaded.recipe.output_dir)
    keeps = flags.keeps_folder(output)
    resume = None if start is None else start.resume
    yaml = to_yaml(loaded.recipe)
    saves = plan.recipe.checkpoint.enabled and not dry_run
    if not dry_run:
        require_room(output, plan, flags.overwrite, 0 if start is None else start.progress.step)
    with open_run(output, yaml, plan, flags.overwrite, dry_run=dry_run, resume=keeps) as run:
        if not dry_run:
            for path in sweep(run.folder.checkpoints):
                print(f"removed {path}: it was not finished", flush=True)
            if keeps and start is None:
                run.folder.metrics_jsonl.unlink(missing_ok=True)
        before = saved_now(output)
        if joined is not None:
            run.lock.keep_through_exec()
            exec_worker(run.plan_path, plan.world, joined, run.logs, dry_run=dry_run, resume=resume)

        def run_once(resume: Resume | None) -> int:
            if not dry_run:
                sweep(run.folder.checkpoints)
            with EventLog(event_log(run.logs)).noting_failure():
                return run_workers(
                    run.plan_path, plan.world, run.logs, dry_run=dry_run, saves=saves, resume=resume, meeting=meeting
                )

        return with_restarts(
            run_once,
            resume,
            lambda: restart_point(output, resume, before),
            max_restarts=0 if dry_run else plan.recipe.launch.max_restarts,
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )


def follow(plan: Plan, joined: Joined, start: Start | None, *, dry_run: bool) -> NoReturn:
    """Becomes the worker of a rank other than the first; the first has the run folder."""
    from sft_cli.launch.join import exec_worker
    from sft_cli.launch.run_folder import RunFolder

    folder = Path(tempfile.mkdtemp(prefix="sftune-dry-run-") if dry_run else plan.recipe.output_dir)
    logs = RunFolder(folder).logs
    # Its own copy, in a file without a name: the first rank's plan.json may not be there yet, and no copy must stay.
    with tempfile.TemporaryFile("w", encoding="utf-8") as file:
        file.write(plan.model_dump_json())
        file.flush()
        os.set_inheritable(file.fileno(), True)
        exec_worker(
            Path(f"/dev/fd/{file.fileno()}"),
            plan.world,
            joined,
            logs,
            dry_run=dry_run,
            resume=start.resume if start else None,
        )
