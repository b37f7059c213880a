"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RecipeArgument = Annotated[
    Path | None,
    typer.Argument(metavar="RECIPE", help="Default: ./sftune.yaml, else the built-in tiny recipe", show_default=False),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Sets a key: --set batching.tokens=4096; repeatable"),
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Shows the traceback of an error")]
JsonOption = Annotated[bool, typer.Option("--json", help="Prints one JSON document and nothing else")]
