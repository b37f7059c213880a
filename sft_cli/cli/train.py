"""`sftune train`: recipe -> plan -> data -> run folder -> workers. Nothing is written before all of it is checked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sft_cli.cli.options import DebugOption, RecipeArgument, SetOption
from sft_cli.errors import SftError

if TYPE_CHECKING:
    from sft_cli.cli.resume import Flags, Start
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
    from sft_cli.cli.planning import plan_run
    from sft_cli.cli.resume import Flags, find_start, is_finished
    from sft_cli.cli.starting import follow, meet, run_beside, run_first, with_nodes
    from sft_cli.launch.join import find_join
    from sft_cli.launch.nodes import find_nodes
    from sft_cli.launch.run_folder import require_free
    from sft_cli.plan.trackers import require_trackers
    from sft_cli.recipe.inputs import check_chat_template, check_data

    check_data(loaded.recipe, loaded.places)
    check_chat_template(loaded.recipe, loaded.places)
    require_trackers(loaded.recipe.telemetry.trackers, loaded.places)
    joined = find_join(os.environ)
    nodes = find_nodes(loaded.recipe.launch, os.environ, loaded.places) if joined is None else None
    if nodes is not None:
        loaded = with_nodes(loaded, nodes)
    output = Path(loaded.recipe.output_dir)
    flags = Flags(resume, resume_from, verify, overwrite)
    flags.check(output)
    # Already inside torchrun or Slurm, every rank runs this; the first one speaks and writes for all.
    if joined is not None and joined.ranks.rank > 0:
        try:
            start = find_start(output, flags, is_stream=loaded.recipe.data.streaming)
            plan, _ = plan_run(loaded, joined, start, progress=False)
        except SftError as error:
            raise typer.Exit(error.exit_code) from error  # the first rank meets it too, and says it once for all
        if start is not None and resume and is_finished(start, plan):
            return  # as the first rank will find, which would not be there to train with
        follow(plan, joined, start, dry_run=dry_run)
    if not dry_run and not flags.keeps_folder(output):
        require_free(output, overwrite)
    start = find_start(output, flags, is_stream=loaded.recipe.data.streaming)
    plan, prepared = plan_run(loaded, joined, start, progress=True)
    if not _goes_on(start, plan, loaded, flags):
        return
    meeting = None if nodes is None else meet(nodes, plan, start, dry_run=dry_run)
    if nodes is not None and not nodes.is_first:
        print(f"node {nodes.rank} of {nodes.count}: node 0 at {nodes.address} speaks for all", flush=True)
        raise typer.Exit(run_beside(plan, start, meeting, dry_run=dry_run))
    print(run_text(plan, prepared, loaded.origin), flush=True)
    if nodes is not None:
        print(f"{'nodes':<10} {nodes.count}, meeting at {nodes.address}", flush=True)
    if (warning := misfit_warning(plan)) is not None:
        print(warning, file=sys.stderr, flush=True)
    raise typer.Exit(run_first(loaded, plan, joined, start, flags, meeting, dry_run=dry_run))


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
