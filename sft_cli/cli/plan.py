"""`sftune plan`: what a recipe resolves to, without loading weights."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from sft_cli.cli.options import DebugOption, JsonOption, RecipeArgument, SetOption
from sft_cli.errors import DataError

if TYPE_CHECKING:
    from sft_cli.plan.plan import Plan
    from sft_cli.recipe.load import Loaded


def plan(
    recipe: RecipeArgument = None,
    set_: SetOption = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="Plans for this GPU: h200, a100-40g ...")
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Shows what a recipe resolves to, and what it costs."""
    from sft_cli.recipe.load import load_recipe

    loaded = load_recipe(recipe, set_ or ())
    # A plan needs no network. huggingface_hub and datasets read this when they are first imported, which is later.
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Imported here and not above: a recipe error has to answer at once.
    from sft_cli.cli.plan_text import plan_text
    from sft_cli.plan.document import plan_json
    from sft_cli.plan.fit import find_fit
    from sft_cli.plan.speed import estimate_speed

    resolved = _with_steps_if_at_hand(_resolve(loaded, gpu), loaded)
    fit, speed = find_fit(resolved), estimate_speed(resolved)
    if as_json:
        typer.echo(json.dumps(plan_json(resolved, fit, speed), indent=2))
    else:
        typer.echo(plan_text(resolved, loaded.origin, fit, speed))


def _resolve(loaded: Loaded, gpu: str | None) -> Plan:
    """Without the network: a hub model is planned from the cache or from a shape that ships."""
    from sft_cli.plan.chat_template import find_chat_template
    from sft_cli.plan.hardware import find_hardware
    from sft_cli.plan.model_facts import find_model, find_tokenizer
    from sft_cli.plan.resolve import resolve
    from sft_cli.plan.vocabulary import fit_vocabulary
    from sft_cli.recipe.inputs import check_chat_template

    recipe, places = loaded.recipe, loaded.places
    check_chat_template(recipe, places)
    hardware = find_hardware(gpu)
    model = find_model(recipe.model, places)
    tokenizer_folder = find_tokenizer(recipe.model, places)
    model = fit_vocabulary(model, tokenizer_folder, places)
    template = find_chat_template(recipe.model, tokenizer_folder)
    return resolve(recipe, hardware, model, tokenizer_folder, places=places, chat_template=template)


def _with_steps_if_at_hand(plan: Plan, loaded: Loaded) -> Plan:
    """Reads the data where that needs no network; a plan needs none, so what is missing is its reason for no steps.

    A stream is not read.
    """
    from sft_cli.cli.planning import stream_steps, with_data
    from sft_cli.plan.resolve import with_steps
    from sft_cli.recipe.inputs import check_data

    if plan.recipe.data.streaming:
        return with_steps(plan, stream_steps(plan))
    if plan.tokenizer_folder is None:
        return plan.model_copy(update={"steps_because": "the tokenizer is not on this machine"})
    try:
        check_data(loaded.recipe, loaded.places)
        return with_data(plan, loaded.places, progress=True, ask_hub=False)[0]
    except DataError as error:
        place = f"{error.where}: " if error.where else ""
        return plan.model_copy(update={"steps_because": f"{place}{error.what}"})
