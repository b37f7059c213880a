"""`sftune data`: the data as the model will see it. Needs no GPU and no weights; the model may be unknown to sftune."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sft_cli.cli.options import DebugOption, JsonOption, RecipeArgument, SetOption
from sft_cli.errors import UsageError

if TYPE_CHECKING:
    from sft_cli.cli.data_view import DataView, Sample
    from sft_cli.data.pieces import Decoder
    from sft_cli.plan.plan import Plan
    from sft_cli.recipe.load import Loaded

ROWS_SHOWN = 2


def data(
    recipe: RecipeArgument = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
    row: Annotated[
        int | None,
        typer.Option("--row", metavar="N", min=0, help="Shows this row whole: from 0, before any is left out"),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", metavar="K", min=0, help="How many rows of each source are shown; default 2")
    ] = ROWS_SHOWN,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Writes it as one page, to read and to share")
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Shows the data as the model will see it."""
    from sft_cli.recipe.load import load_recipe

    loaded = load_recipe(recipe, set_ or ())
    # Imported here and not above: a recipe error has to answer at once.
    from sft_cli.cli.data_html import MARK, page
    from sft_cli.cli.data_text import print_sample, print_view
    from sft_cli.cli.data_view import to_json
    from sft_cli.data.pieces import open_decoder
    from sft_cli.data.pinning import note_pins, pin_sources

    if html is not None:
        _require_page(html, MARK)
    given = _plan(loaded)
    plan = pin_sources(given, loaded.places, progress=True)
    assert plan.tokenizer_folder is not None, "find_tokenizer downloads what is not here"
    decoder = open_decoder(plan.tokenizer_folder, trust_remote_code=loaded.recipe.model.trust_remote_code)
    sample = None if row is None else _sample(plan, decoder, row)
    if sample is not None and not as_json and html is None:
        print_sample(sample)  # it needs no other row, and shows one where another is bad
        return
    view = _view(plan, loaded.origin, decoder, sample, rows)
    note_pins(given, plan)
    if html is not None:
        _write(html, page(view))
        print(f"wrote {html}", file=sys.stderr, flush=True)
    if as_json:
        typer.echo(json.dumps(to_json(view), indent=2))
    else:
        print_view(view)


def _plan(loaded: Loaded) -> Plan:
    """As much of a plan as the data depends on: recipe, ranks and tokenizer; of the model nothing."""
    from sft_cli.plan.chat_template import find_chat_template
    from sft_cli.plan.hardware import find_hardware
    from sft_cli.plan.model_facts import find_tokenizer
    from sft_cli.plan.plan import Plan, World
    from sft_cli.recipe.inputs import check_chat_template, check_data

    recipe, places = loaded.recipe, loaded.places
    check_data(recipe, places)
    check_chat_template(recipe, places)
    folder = find_tokenizer(recipe.model, places, download=True)
    template = find_chat_template(recipe.model, folder)
    if template is not None:
        model = recipe.model.model_copy(update={"chat_template": template.value})
        recipe = recipe.model_copy(update={"model": model})
    gpus = recipe.launch.gpus
    ranks = max(find_hardware().gpus, 1) if gpus == "auto" else gpus
    facts: dict[str, Any] = {
        "recipe": recipe,
        "choices": (),
        "world": World(ranks=ranks * recipe.launch.nodes, nodes=recipe.launch.nodes, device="cpu"),
        "tokenizer_folder": folder,
    }
    return Plan.model_construct(**facts)


def _sample(plan: Plan, decoder: Decoder, number: int) -> Sample:
    from sft_cli.cli.data_view import make_sample
    from sft_cli.data.one_row import find_row

    found = find_row(plan, number)
    return make_sample(f"row {number:,}, {found.place}", decoder, found.chat.token_ids, found.chat.supervised)


def _view(plan: Plan, origin: str, decoder: Decoder, sample: Sample | None, rows: int) -> DataView:
    from sft_cli.cli.data_view import make_view
    from sft_cli.data.prepare import prepare

    return make_view(plan, origin, decoder, prepare(plan, progress=True), sample, rows)


def _require_page(file: Path, mark: str) -> None:
    """Passes a name under which a page can be written: a mistyped option must not cost a data set.

    Raises:
        UsageError: a folder, in a folder that isn't there, or a file that holds something else.
    """
    if file.is_dir():
        raise UsageError("is a folder", where=f"--html {file}", fix=f"Name a file: {file / 'data.html'}.")
    if not file.absolute().parent.is_dir():
        raise UsageError("its folder does not exist", where=f"--html {file}", fix="Make the folder, or name another.")
    if not file.is_file():
        return
    try:
        with file.open("rb") as stream:
            beginning = stream.read(len(mark.encode()))
    except OSError as error:
        raise UsageError(
            f"can't be read: {error.strerror}", where=f"--html {file}", fix="Name another file."
        ) from error
    if beginning not in (b"", mark.encode()):
        raise UsageError(
            "exists, and is no page of `sftune data`", where=f"--html {file}", fix="Name another file, or remove it."
        )


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"can't be written: {error.strerror}", where=f"--html {file}", fix="Name another file."
        ) from error
