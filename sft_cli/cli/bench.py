"""`sftune bench`: a recipe's steps beside what they are without sftune's kernels, packing and choices."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sft_cli.cli.options import DebugOption, JsonOption, RecipeArgument, SetOption
from sft_cli.errors import UsageError

if TYPE_CHECKING:
    from sft_cli.recipe.load import Loaded


def bench(
    recipe: RecipeArgument = None,
    set_: SetOption = None,
    rungs: Annotated[
        str | None,
        typer.Option(
            "--rungs",
            metavar="NAMES",
            help="Of stock, kernels, packing, everything, published, float8; with commas. Default: the first four",
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", min=1, show_default=False, help="Steps that are timed; default: 5")
    ] = 5,
    warm_up: Annotated[
        int, typer.Option("--warm-up", metavar="N", min=1, show_default=False, help="Steps before them; default: 2")
    ] = 2,
    layers: Annotated[
        int | None,
        typer.Option("--layers", metavar="N", min=1, help="The model's first N layers alone, with random weights"),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Keeps the numbers, for --against")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="FILE", help="Exits with 1 where a rung is slower than the saved one"),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance", metavar="SHARE", min=0, max=1, show_default=False, help="How much slower; default: 0.05"
        ),
    ] = 0.05,
    append: Annotated[
        Path | None,
        typer.Option("--append", metavar="FILE", help="Adds the rungs to those of earlier calls; repeats their first"),
    ] = None,
    tune: Annotated[
        Path | None,
        typer.Option("--tune", metavar="FILE", help="Tries other micro-batches and checkpointing; writes the fastest"),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Times a recipe's steps against stock, rung by rung."""
    from sft_cli.cli.bench_ladder import picked
    from sft_cli.recipe.load import load_recipe

    wanted = picked(rungs)
    loaded = load_recipe(recipe, set_ or ())
    # Imported here and not above: a recipe error has to answer at once.
    from sft_cli.cli.bench_calls import Calls
    from sft_cli.cli.bench_climb import Climbed, climb
    from sft_cli.cli.bench_document import known_setting
    from sft_cli.cli.bench_files import require_writable
    from sft_cli.cli.bench_guard import Guard
    from sft_cli.cli.bench_outcome import Outcome
    from sft_cli.cli.bench_rung import Order
    from sft_cli.cli.bench_tune import Search, write_tuned
    from sft_cli.recipe.inputs import check_chat_template, check_data

    _require_one_machine(loaded)
    if tune is not None and any(other is not None for other in (rungs, layers, append, against)):
        raise UsageError("a search has runs of its own", where="--tune", fix="Leave out all but --steps and --save.")
    for path, option in ((save, "--save"), (append, "--append"), (tune, "--tune")):
        if path is not None:
            require_writable(path, option)
    guard = None if against is None else Guard.read(against, tolerance, [rung.name for rung in wanted])
    calls = None if append is None else Calls.read(append)
    check_data(loaded.recipe, loaded.places)
    check_chat_template(loaded.recipe, loaded.places)
    if layers is not None:
        _require_layers(loaded, layers)
    given = tuple(set_ or ())
    orders = [
        Order(rung.name, rung.what, recipe, (*given, *rung.sets(loaded.recipe)), steps, warm_up, layers)
        for rung in wanted
    ]
    outcome = Outcome(loaded.origin, given, save, calls, guard)
    known = known_setting(loaded.recipe, layers)
    outcome.require_same(known)
    if tune is not None:
        search = Search(Order("the recipe as it is", "to begin with", recipe, given, steps, warm_up, None))

        def see(so_far: Climbed) -> None:
            search.see(so_far.entries[-1])
            outcome.keep(so_far, ())

        climbed = climb(search, known, outcome.require_same, see)
        code = outcome.tell(climbed, (), as_json=as_json)
        if search.best is not None:
            typer.echo(write_tuned(tune, search.best), err=as_json)
            code = climbed.stopped_by  # a try that failed is none that the recipe needs
        raise typer.Exit(code)
    with tempfile.TemporaryDirectory(prefix="sftune-bench-") as scratch:
        if calls is not None:
            orders = calls.with_anchor(orders, Path(scratch))
        climbed = climb(orders, known, outcome.require_same, lambda so_far: outcome.keep(so_far, orders))
        raise typer.Exit(outcome.tell(climbed, orders, as_json=as_json))


def _require_layers(loaded: Loaded, layers: int) -> None:
    """Every rung would find the same wrong with them."""
    from sft_cli.plan.layer_slice import first_layers
    from sft_cli.plan.model_facts import find_model

    model = loaded.recipe.model.model_copy(update={"weights": "random"})
    first_layers(find_model(model, loaded.places, download=True), layers)


def _require_one_machine(loaded: Loaded) -> None:
    from sft_cli.launch.join import find_join
    from sft_cli.launch.slurm import one_task_a_node

    if (joined := find_join(os.environ)) is not None:
        if joined.ranks.rank > 0:
            raise typer.Exit(UsageError.exit_code)  # the first one says it for all
        raise UsageError(
            "`bench` starts its own ranks, once a rung, and this process is one of a launcher's",
            fix="Start it without torchrun, or with one task of srun.",
        )
    if loaded.recipe.launch.nodes > 1 or one_task_a_node(os.environ):
        raise UsageError(
            "`bench` starts the ranks of one machine, and this run has several machines",
            where=loaded.places.of("launch.nodes"),
            fix="Add `--set launch.nodes=1` on one of them.",
        )
