"""`sftune init`: a starter recipe to fill in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sft_cli.cli.options import DebugOption
from sft_cli.errors import UsageError

STARTER = Path(__file__).with_name("starter.yaml")


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it")] = Path("sftune.yaml"),
    debug: DebugOption = False,
) -> None:
    """Writes a commented starter recipe."""
    if file.is_dir():
        file = file / "sftune.yaml"
    try:
        with file.open("x", encoding="utf-8") as recipe:
            recipe.write(STARTER.read_text(encoding="utf-8"))
    except FileExistsError as error:
        raise UsageError("exists already; nothing was written", where=str(file), fix="Name another file.") from error
    except OSError as error:
        raise UsageError(f"can't be written: {error.strerror}", where=str(file), fix="Name another file.") from error
    typer.echo(f"wrote {file}; `sftune plan {file}` shows what it would do, `sftune train {file}` does it")
