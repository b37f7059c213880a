"""`sftune launch --for slurm RECIPE`: what a cluster's scheduler wants to run it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sft_cli.cli.options import DebugOption, SetOption
from sft_cli.errors import UsageError


class Scheduler(StrEnum):
    slurm = "slurm"


def launch(
    recipe: Annotated[Path | None, typer.Argument(metavar="RECIPE", help="Default: ./sftune.yaml")] = None,
    set_: SetOption = None,
    scheduler: Annotated[
        Scheduler, typer.Option("--for", metavar="SCHEDULER", help="slurm: prints a script for sbatch")
    ] = Scheduler.slurm,
    debug: DebugOption = False,
) -> None:
    """Prints a script that trains a recipe on a cluster."""
    from sft_cli.launch.slurm_script import slurm_script
    from sft_cli.recipe.load import load_recipe

    overrides = tuple(set_ or ())
    path = recipe or Path("sftune.yaml")
    if not path.exists() and recipe is None:
        raise UsageError("no recipe to launch", fix="Name one: sftune launch --for slurm recipe.yaml")
    loaded = load_recipe(path, overrides)
    for key in ("node_rank", "rendezvous"):
        if getattr(loaded.recipe.launch, key) is not None:
            raise UsageError(
                "under Slurm this follows from the job, and the same recipe is started on every machine",
                where=loaded.places.of(f"launch.{key}"),
                fix="Remove it.",
            )
    typer.echo(slurm_script(loaded.recipe, path.absolute(), overrides), nl=False)
