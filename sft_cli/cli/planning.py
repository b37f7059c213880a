"""From a loaded recipe to a plan with its number of steps: what `train` and `plan` share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sft_cli.data.prepare import PreparedData
    from sft_cli.plan.plan import Plan
    from sft_cli.recipe.places import Places


def with_data(
    plan: Plan, places: Places | None = None, *, progress: bool, ask_hub: bool = True
) -> tuple[Plan, PreparedData]:
    """The plan once the data is read, which tokenises it where the cache lacks it; of a stream its beginning.

    Args:
        plan: with a tokenizer folder.
        places: where the recipe's keys stand, for errors.
        progress: show how far tokenisation is, on stderr.
        ask_hub: whether hub data sets may be looked up and downloaded; else the local cache has to do.

    Raises:
        DataError: data that can't be read, or too little of it.
        ModelError: a tokenizer or chat template that can't be used.
        CheckpointError: a cache that can't be written.
    """
    from sft_cli.data.order import count_steps
    from sft_cli.data.pinning import note_pins, pin_sources
    from sft_cli.data.prepare import prepare
    from sft_cli.plan.resolve import with_steps

    given, plan = plan, pin_sources(plan, places, progress=progress, ask_hub=ask_hub)
    prepared = prepare(plan, progress=progress)
    note_pins(given, plan)
    lengths = prepared.train.lengths.astype("float64")
    row_tokens = float((lengths**2).sum() / lengths.sum())
    steps = stream_steps(plan) if plan.recipe.data.streaming else count_steps(prepared.train, plan)
    return with_steps(plan, steps, row_tokens), prepared


def stream_steps(plan: Plan) -> int:
    """Optimizer steps of a run on a stream, which ends earlier where the stream does."""
    steps = plan.recipe.train.max_steps
    assert steps is not None, "a rule of recipes with data.streaming"
    return steps
