"""The command line: `sftune COMMAND [RECIPE] [--set section.key=value]...`"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from sft_cli.cli import bench, check_kernels, data, export, init, launch, plan, profile, report, schema, train
from sft_cli.cli.errors import reporting_errors
from sft_cli.cli.options import DebugOption
from sft_cli.launch.bytecode import keep_bytecode

# pydantic would look through the entry points of every installed package for plugins that nobody here has:
# a quarter of the time until a recipe error is answered.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

app = typer.Typer(
    name="sftune",
    help="Fine-tunes language models from one YAML recipe.",
    epilog="Keys of a recipe: docs/recipe.md. Exit codes: docs/errors.md.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (
    train.train,
    profile.profile,
    check_kernels.check_kernels,
    plan.plan,
    data.data,
    bench.bench,
    export.export,
    report.report,
    schema.schema,
    init.init,
    launch.launch,
):
    app.command()(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"sftune {version('sftune')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Prints the version and exits")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Options before the command; `main` reads --debug wherever it stands."""


def main() -> None:
    """Runs the command of `sys.argv` and exits with its code."""
    keep_bytecode()  # before anything large is imported
    with reporting_errors(debug="--debug" in sys.argv):
        app(prog_name="sftune")
