"""`sftune train`: recipe -> plan -> data -> run folder -> workers. Nothing is written before all of it is checked."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from sft_cli.cli.options import DebugOption, RecipeArgument, SetOption
from sft_cli.errors import SftError

if TYPE_CHECKING:
    from sft_cli.cli.resume import Flags, Start
    from sft_cli.data.prepare import PreparedData
    from sft_cli.launch.join import Joined
    from sft_cli.launch.meeting import Meeting
    from sft_cli.launch.nodes import Nodes
    from sft_cli.launch.resume import Resume
    from sft_cli.plan.plan import Plan
    from sft_cli.recipe.load import Loaded


def train(
    recipe: RecipeArgument = None,
    set_: SetOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Goes on from the newest complete checkpoint in output_dir")
    ] = False,
    resume_from: Annotated[
        Path | None, typer.Option("--resume-from", metavar="CHECKPOINT", help="Goes on from this checkpoint")
    ] = None,
    verify: Annotated[
        int | None,
        typer.Option("--verify", metavar="N", help="With --resume: first replays N logged steps and compares them"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Deletes the run that output_dir holds")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Everything up to one worst-case step; writes the plan")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Trains a recipe, then saves and exports the model."""
    from sft_cli.recipe.load import load_recipe

    loaded = load_recipe(recipe, set_ or ())
    # Imported here and not above: a recipe error has to answer at once.
    from sft_cli.cli.fit_text import misfit_warning
    from sft_cli.cli.plan_text import run_text
    from sft_cli.cli.resume import Flags, find_start
    from sft_cli.launch.join import find_join
    from sft_cli.launch.nodes import find_nodes
    from sft_cli.launch.run_folder import require_free
    from sft_cli.recipe.inputs import check_chat_template, check_data

    check_data(loaded.recipe, loaded.places)
    check_chat_template(loaded.recipe, loaded.places)
    joined = find_join(os.environ)
    nodes = find_nodes(loaded.recipe.launch, os.environ, loaded.places) if joined is None else None
    if nodes is not None:
        loaded = _with_nodes(loaded, nodes)
    output = Path(loaded.recipe.output_dir)
    flags = Flags(resume, resume_from, verify, overwrite)
    flags.check(output)
    # Already inside torchrun or Slurm, every rank runs this; the first one speaks and writes for all.
    if joined is not None and joined.ranks.rank > 0:
        try:
            start = find_start(output, flags, is_stream=loaded.recipe.data.streaming)
            plan, _ = _plan(loaded, joined, start, progress=False)
        except SftError as error:
            raise typer.Exit(error.exit_code) from error  # the first rank meets it too, and says it once for all
        _follow(plan, joined, start, dry_run=dry_run)
    if not dry_run and not flags.keeps_folder(output):
        require_free(output, overwrite)
    start = find_start(output, flags, is_stream=loaded.recipe.data.streaming)
    plan, prepared = _plan(loaded, joined, start, progress=True)
    if not _goes_on(start, plan, loaded, flags):
        return
    meeting = None if nodes is None else _meeting(nodes, plan, start, dry_run=dry_run)
    if nodes is not None and not nodes.is_first:
        print(f"node {nodes.rank} of {nodes.count}: node 0 at {nodes.address} speaks for all", flush=True)
        raise typer.Exit(_run_beside(plan, start, meeting, dry_run=dry_run))
    print(run_text(plan, prepared, loaded.origin), flush=True)
    if nodes is not None:
        print(f"{'nodes':<10} {nodes.count}, meeting at {nodes.address}", flush=True)
    if (warning := misfit_warning(plan)) is not None:
        print(warning, file=sys.stderr, flush=True)
    raise typer.Exit(_run(loaded, plan, joined, start, flags, meeting, dry_run=dry_run))


def _goes_on(start: Start | None, plan: Plan, loaded: Loaded, flags: Flags) -> bool:
    """Says what a run goes on from, and what of it can't be as it was; False where it is done already.

    Raises:
        UsageError: it would be another run.
    """
    from sft_cli.cli.resume import is_finished, require_same_run

    if start is None:
        if flags.resume:
            print("no complete checkpoint to resume from: starting at step 0", flush=True)
        return True
    for line in require_same_run(start, plan, loaded.places):
        print(f"not as before: {line}")
    if flags.resume and is_finished(start, plan):
        print(f"this run is done: {start.progress.step} of {plan.steps} steps, {plan.recipe.output_dir}")
        return False
    print(f"resuming from {start.resume.checkpoint}, after step {start.progress.step}", flush=True)
    return True


def _plan(loaded: Loaded, joined: Joined | None, start: Start | None, *, progress: bool) -> tuple[Plan, PreparedData]:
    """Recipe, hardware, model and data, resolved; downloads what the hub cache lacks."""
    from sft_cli.cli.planning import with_data
    from sft_cli.cli.resume import with_remaining_steps
    from sft_cli.data.rows import rows_hash
    from sft_cli.plan.chat_template import find_chat_template
    from sft_cli.plan.hardware import find_hardware
    from sft_cli.plan.model_facts import fetch_weights, find_model, find_tokenizer
    from sft_cli.plan.resolve import resolve
    from sft_cli.plan.safetensors_header import stored_tensors
    from sft_cli.plan.vocabulary import fit_vocabulary

    recipe, places = loaded.recipe, loaded.places
    hardware = find_hardware()
    model = find_model(recipe.model, places, download=True)
    tokenizer_folder = find_tokenizer(recipe.model, places, download=True)
    model = fit_vocabulary(model, tokenizer_folder, places)
    ranks = joined.ranks.world_size if joined is not None else None
    template = find_chat_template(recipe.model, tokenizer_folder)
    plan = resolve(recipe, hardware, model, tokenizer_folder, ranks, places, template)
    plan, prepared = with_data(plan, places, progress=progress)
    plan = plan.model_copy(update={"rows_hash": rows_hash(prepared.train)})
    if start is not None:
        plan = with_remaining_steps(plan, start, prepared.train)
    # Last: nothing else takes as long, and all else is known to be right by now.
    fetch_weights(recipe.model, model, places, progress=progress)
    if model.weights == "pretrained" and model.folder is not None:
        stored_tensors(Path(model.folder))  # a file that is cut short would else be found by the workers
    return plan, prepared


def _with_nodes(loaded: Loaded, nodes: Nodes) -> Loaded:
    """Slurm may have said how many machines there are; which of them this is is no part of the run."""
    launch = loaded.recipe.launch.model_copy(update={"nodes": nodes.count, "node_rank": None})
    return replace(loaded, recipe=loaded.recipe.model_copy(update={"launch": launch}))


def _meeting(nodes: Nodes, plan: Plan, start: Start | None, *, dry_run: bool) -> Meeting:
    from importlib.metadata import version

    from sft_cli.launch.meeting import Meeting, agreement

    words = [] if start is None else start.resume.arguments()
    card = agreement(plan, version=version("sftune"), start=" ".join(words), run="dry" if dry_run else "whole")
    shares = plan.recipe.checkpoint.enabled and not dry_run
    return Meeting(nodes, plan.world.ranks_per_node, card, plan.recipe.output_dir if shares else None)


def _run_beside(plan: Plan, start: Start | None, meeting: Meeting | None, *, dry_run: bool) -> int:
    """Runs the ranks of a machine other than the first, which has the run folder; the command's exit code."""
    from sft_cli.launch.run_folder import RunFolder
    from sft_cli.launch.supervise import run_workers

    with tempfile.TemporaryDirectory(prefix="sftune-node-") as own:
        logs = Path(tempfile.mkdtemp(prefix="sftune-")) if dry_run else RunFolder(Path(plan.recipe.output_dir)).logs
        plan_path = Path(own, "plan.json")
        plan.write(plan_path)
        resume = None if start is None else start.resume
        exit_code = run_workers(plan_path, plan.world, logs, dry_run=dry_run, resume=resume, meeting=meeting)
    if dry_run:
        shutil.rmtree(logs)  # not in a `finally`: the error of a failed one names a log in there
    return exit_code


def _run(
    loaded: Loaded,
    plan: Plan,
    joined: Joined | None,
    start: Start | None,
    flags: Flags,
    meeting: Meeting | None,
    *,
    dry_run: bool,
) -> int:
    """Opens the run folder and trains in it; the command's exit code."""
    from sft_cli.checkpoint.layout import sweep
    from sft_cli.cli.disk import require_room
    from sft_cli.cli.resume import newest
    from sft_cli.launch.join import exec_worker
    from sft_cli.launch.restarts import with_restarts
    from sft_cli.launch.run_folder import open_run
    from sft_cli.launch.supervise import run_workers
    from sft_cli.recipe.dump import to_yaml

    output = Path(loaded.recipe.output_dir)
    keeps = flags.keeps_folder(output)
    resume = None if start is None else start.resume
    yaml = to_yaml(loaded.recipe)
    if not dry_run:
        require_room(output, plan, flags.overwrite, 0 if start is None else start.progress.step)
    with open_run(output, yaml, plan, flags.overwrite, dry_run=dry_run, resume=keeps) as run:
        if not dry_run:
            for path in sweep(run.folder.checkpoints):
                print(f"removed {path}: it was not finished", flush=True)
            if keeps and start is None:
                run.folder.metrics_jsonl.unlink(missing_ok=True)
        if joined is not None:
            run.lock.keep_through_exec()
            exec_worker(run.plan_path, plan.world, joined, run.logs, dry_run=dry_run, resume=resume)

        def run_once(resume: Resume | None) -> int:
            if not dry_run:
                sweep(run.folder.checkpoints)
            return run_workers(run.plan_path, plan.world, run.logs, dry_run=dry_run, resume=resume, meeting=meeting)

        return with_restarts(
            run_once,
            resume,
            lambda: newest(output),
            max_restarts=0 if dry_run else plan.recipe.launch.max_restarts,
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )


def _follow(plan: Plan, joined: Joined, start: Start | None, *, dry_run: bool) -> NoReturn:
    """Becomes the worker of a rank other than the first; the first has the run folder."""
    from sft_cli.launch.join import exec_worker
    from sft_cli.launch.run_folder import RunFolder

    logs = Path(tempfile.mkdtemp(prefix="sftune-")) if dry_run else RunFolder(Path(plan.recipe.output_dir)).logs
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
