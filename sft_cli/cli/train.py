"""`sftune train`: recipe -> plan -> data -> run folder -> workers. Nothing is written before all of it is checked."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from sft_cli.cli.options import DebugOption, RecipeArgument, SetOption
from sft_cli.errors import SftError

if TYPE_CHECKING:
    from sft_cli.data.prepare import PreparedData
    from sft_cli.launch.join import Joined
    from sft_cli.plan.plan import Plan
    from sft_cli.recipe.load import Loaded


def train(
    recipe: RecipeArgument = None,
    set_: SetOption = None,
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
    from sft_cli.launch.join import find_join
    from sft_cli.launch.run_folder import require_free
    from sft_cli.recipe.inputs import check_chat_template, check_data

    check_data(loaded.recipe, loaded.places)
    check_chat_template(loaded.recipe, loaded.places)
    joined = find_join(os.environ)
    # Already inside torchrun or Slurm, every rank runs this; the first one speaks and writes for all.
    if joined is not None and joined.ranks.rank > 0:
        try:
            plan, _ = _plan(loaded, joined, progress=False)
        except SftError as error:
            raise typer.Exit(error.exit_code) from error  # the first rank meets it too, and says it once for all
        _follow(plan, joined, dry_run=dry_run)
    if not dry_run:
        require_free(Path(loaded.recipe.output_dir), overwrite)
    plan, prepared = _plan(loaded, joined, progress=True)
    print(run_text(plan, prepared, loaded.origin), flush=True)
    if (warning := misfit_warning(plan)) is not None:
        print(warning, file=sys.stderr, flush=True)
    raise typer.Exit(_run(loaded, plan, joined, overwrite=overwrite, dry_run=dry_run))


def _plan(loaded: Loaded, joined: Joined | None, *, progress: bool) -> tuple[Plan, PreparedData]:
    """Recipe, hardware, model and data, resolved; downloads what the hub cache lacks."""
    from sft_cli.cli.planning import with_data
    from sft_cli.plan.chat_template import find_chat_template
    from sft_cli.plan.hardware import find_hardware
    from sft_cli.plan.model_facts import fetch_weights, find_model, find_tokenizer
    from sft_cli.plan.resolve import resolve
    from sft_cli.plan.vocabulary import fit_vocabulary

    recipe, places = loaded.recipe, loaded.places
    hardware = find_hardware()
    model = find_model(recipe.model, places, download=True)
    tokenizer_folder = find_tokenizer(recipe.model, places, download=True)
    model = fit_vocabulary(model, tokenizer_folder, places)
    ranks = joined.ranks.world_size if joined is not None else None
    template = find_chat_template(recipe.model, tokenizer_folder)
    plan = resolve(recipe, hardware, model, tokenizer_folder, ranks, places, template)
    planned = with_data(plan, places, progress=progress)
    # Last: nothing else takes as long, and all else is known to be right by now.
    fetch_weights(recipe.model, model, places, progress=progress)
    return planned


def _run(loaded: Loaded, plan: Plan, joined: Joined | None, *, overwrite: bool, dry_run: bool) -> int:
    """Opens the run folder and trains in it; the command's exit code."""
    from sft_cli.launch.join import exec_worker
    from sft_cli.launch.run_folder import open_run
    from sft_cli.launch.supervise import run_workers
    from sft_cli.recipe.dump import to_yaml

    output = Path(loaded.recipe.output_dir)
    with open_run(output, to_yaml(loaded.recipe), plan, overwrite, dry_run=dry_run) as run:
        if joined is not None:
            run.lock.keep_through_exec()
            exec_worker(run.plan_path, plan.world, joined, run.logs, dry_run=dry_run)
        return run_workers(run.plan_path, plan.world, run.logs, dry_run=dry_run)


def _follow(plan: Plan, joined: Joined, *, dry_run: bool) -> NoReturn:
    """Becomes the worker of a rank other than the first; the first has the run folder."""
    from sft_cli.launch.join import exec_worker
    from sft_cli.launch.run_folder import RunFolder

    logs = Path(tempfile.mkdtemp(prefix="sftune-")) if dry_run else RunFolder(Path(plan.recipe.output_dir)).logs
    # Its own copy, in a file without a name: the first rank's plan.json may not be there yet, and no copy must stay.
    with tempfile.TemporaryFile("w", encoding="utf-8") as file:
        file.write(plan.model_dump_json())
        file.flush()
        os.set_inheritable(file.fileno(), True)
        exec_worker(Path(f"/dev/fd/{file.fileno()}"), plan.world, joined, logs, dry_run=dry_run)
