"""From a loaded recipe to a plan with its number of steps: what `train`, `profile` and `plan` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sft_cli.cli.resume import Start
    from sft_cli.data.prepare import PreparedData
    from sft_cli.launch.join import Joined
    from sft_cli.plan.plan import Plan
    from sft_cli.recipe.load import Loaded
    from sft_cli.recipe.places import Places


def plan_run(
    loaded: Loaded, joined: Joined | None, start: Start | None, *, progress: bool, layers: int | None = None
) -> tuple[Plan, PreparedData]:
    """Recipe, hardware, model and data of a run, resolved; downloads what the hub cache lacks.

    Args:
        joined: the launcher that has started this process as one of its ranks; None where there is none.
        start: the checkpoint that the run goes on from; None for step 0.
        layers: of the model the first ones alone, with random weights; None: all of it.
    """
    from sft_cli.data.rows import rows_hash
    from sft_cli.plan.chat_template import find_chat_template
    from sft_cli.plan.hardware import find_hardware
    from sft_cli.plan.layer_slice import first_layers
    from sft_cli.plan.model_facts import fetch_weights, find_model, find_tokenizer
    from sft_cli.plan.resolve import resolve
    from sft_cli.plan.safetensors_header import stored_tensors
    from sft_cli.plan.vocabulary import fit_vocabulary

    recipe, places = loaded.recipe, loaded.places
    hardware = find_hardware()
    model = find_model(recipe.model, places, download=True)
    if layers is not None:
        model = first_layers(model, layers)
    tokenizer_folder = find_tokenizer(recipe.model, places, download=True)
    model = fit_vocabulary(model, tokenizer_folder, places)
    ranks = joined.ranks.world_size if joined is not None else None
    template = find_chat_template(recipe.model, tokenizer_folder)
    plan = resolve(recipe, hardware, model, tokenizer_folder, ranks, places, template)
    plan, prepared = with_data(plan, places, progress=progress, start=start)
    plan = plan.model_copy(update={"rows_hash": rows_hash(prepared.train)})
    # Last: nothing else takes as long, and all else is known to be right by now.
    fetch_weights(recipe.model, model, places, progress=progress)
    if model.weights == "pretrained" and model.folder is not None:
        stored_tensors(Path(model.folder))  # a file that is cut short would else be found by the workers
    return plan, prepared


def with_data(
    plan: Plan, places: Places | None = None, *, progress: bool, ask_hub: bool = True, start: Start | None = None
) -> tuple[Plan, PreparedData]:
    """The plan once the data is read, which tokenises it where the cache lacks it; of a stream its beginning.

    Args:
        plan: with a tokenizer folder.
        places: where the recipe's keys stand, for errors.
        progress: show how far tokenisation is, on stderr.
        ask_hub: whether hub data sets may be looked up and downloaded; else the local cache has to do.
        start: the checkpoint that the run goes on from. Steps taken before it count as they were, on whatever number of
            ranks, and the rest of the data is cut for the ranks of now.

    Raises:
        DataError: data that can't be read, or too little of it.
        ModelError: a tokenizer or chat template that can't be used.
        CheckpointError: a cache that can't be written.
    """
    from sft_cli.data.order import count_steps
    from sft_cli.data.pinning import note_pins, pin_sources
    from sft_cli.data.prepare import prepare
    from sft_cli.plan.resolve import with_formats, with_steps
    from sft_cli.train.position import data_position

    given, plan = plan, pin_sources(plan, places, progress=progress, ask_hub=ask_hub)
    prepared = prepare(plan, progress=progress)
    note_pins(given, plan)
    reports = (("train", prepared.report.train), ("eval", prepared.report.eval))
    plan = with_formats(plan, {f"{part}.{at}": one.format for part, of in reports for at, one in enumerate(of)})
    lengths = prepared.train.lengths.astype("float64")
    row_tokens = float((lengths**2).sum() / lengths.sum())
    position = data_position(None if start is None else start.progress)
    steps = stream_steps(plan) if plan.recipe.data.streaming else count_steps(prepared.train, plan, position)
    return with_steps(plan, steps, row_tokens), prepared


def stream_steps(plan: Plan) -> int:
    """Optimizer steps of a run on a stream, which ends earlier where the stream does."""
    steps = plan.recipe.train.max_steps
    assert steps is not None, "a rule of recipes with data.streaming"
    return steps
