"""`sftune profile`: some steps of a run with torch's profiler on, and what to learn from them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from sft_cli.cli.options import DebugOption, RecipeArgument, SetOption
from sft_cli.errors import SftError, UsageError


def profile(
    recipe: RecipeArgument = None,
    set_: SetOption = None,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", min=1, show_default=False, help="Steps that are profiled; default: 5")
    ] = 5,
    memory: Annotated[
        bool, typer.Option("--memory", help="Also memory over the step, and on a GPU torch's memory snapshot")
    ] = False,
    compare: Annotated[
        Path | None,
        typer.Option("--compare", metavar="OTHER", help="Beside another run's folder or profile.json: what changed"),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Shows where a step's time goes, and what would win it back."""
    from sft_cli.recipe.load import load_recipe

    loaded = load_recipe(recipe, set_ or ())
    # Imported here and not above: a recipe error has to answer at once.
    from sft_cli.cli.fit_text import misfit_warning
    from sft_cli.cli.plan_text import run_text
    from sft_cli.cli.planning import plan_run
    from sft_cli.cli.resume import Flags
    from sft_cli.cli.starting import follow, run_first
    from sft_cli.launch.join import find_join
    from sft_cli.launch.slurm import one_task_a_node
    from sft_cli.plan.profiling import Profiling
    from sft_cli.recipe.inputs import check_chat_template, check_data
    from sft_cli.telemetry.profile.document import read

    joined = find_join(os.environ)
    if joined is None and (loaded.recipe.launch.nodes > 1 or one_task_a_node(os.environ)):
        raise UsageError(
            "`profile` starts the ranks of one machine, and this run has several machines",
            where=loaded.places.of("launch.nodes"),
            fix="Add `--set launch.nodes=1` on one of them, or start it with torchrun, or srun with one task a GPU.",
        )
    other = None if compare is None else Path(read(compare)["path"]).absolute()
    check_data(loaded.recipe, loaded.places)
    check_chat_template(loaded.recipe, loaded.places)
    asked = Profiling(steps=steps, memory=memory, compare=None if other is None else str(other))
    is_first = joined is None or joined.ranks.rank == 0
    try:
        plan, prepared = plan_run(loaded, joined, None, progress=is_first)
    except SftError as error:
        if is_first:
            raise
        raise typer.Exit(error.exit_code) from error  # the first rank meets it too, and says it once for all
    plan = plan.model_copy(update={"profiling": asked})
    # As a dry run: the plan is all that it leaves outside of the folder `profile`, and not even that beside a run.
    if joined is not None and not is_first:
        follow(plan, joined, None, dry_run=True)
    print(run_text(plan, prepared, loaded.origin), flush=True)
    if (warning := misfit_warning(plan)) is not None:
        print(warning, file=sys.stderr, flush=True)
    raise typer.Exit(run_first(loaded, plan, joined, None, Flags(), None, dry_run=True))
