"""`sftune schema`: the recipe's JSON Schema."""

from __future__ import annotations

import json

import typer

from sft_cli.cli.options import DebugOption


def schema(debug: DebugOption = False) -> None:
    """Prints the recipe's JSON Schema, for editors."""
    from sft_cli.recipe.json_schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))
