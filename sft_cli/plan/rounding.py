"""Whether weights that are kept in bfloat16 can move at all."""

from __future__ import annotations

import math
from typing import Any

from sft_cli.plan.model_types import text_config
from sft_cli.plan.plan import Choice
from sft_cli.recipe.schema import Recipe

_DIGITS = 8
"""Binary digits of bfloat16, the first one included."""
_USUAL_SPREAD = 0.02
"""Standard deviation of weights where the config does not say what they were drawn with."""


def rounding_choices(recipe: Recipe, config: dict[str, Any]) -> list[Choice]:
    """A warning with the share of weights that stand still: bfloat16 masters that are rounded to the nearest.

    Args:
        config: config.json of the model.
    """
    if recipe.model.master_dtype != "bfloat16" or recipe.optimizer.stochastic_rounding:
        return []
    learning_rate = recipe.optimizer.learning_rate
    spread = float(text_config(config).get("initializer_range") or _USUAL_SPREAD)
    largest = largest_that_moves(learning_rate)
    because = (
        f"WARNING: an update of the learning rate's size, {learning_rate:g}, is rounded away on every weight from "
        f"{largest:.2g} on: {share_above(largest, spread):.0%} of weights spread by {spread:g} do not move. Write "
        "`optimizer: {stochastic_rounding: true}`, or `master_dtype: float32`"
    )
    return [Choice(key="model.master_dtype", value="bfloat16", because=because)]


def largest_that_moves(learning_rate: float) -> float:
    """The size from which on adding `learning_rate` to a bfloat16 number leaves it as it is.

    AdamW's update is at most about the learning rate. Numbers from 2^e up to twice that are 2^(e + 1 - `_DIGITS`)
    apart, and what is under half of it is rounded away.
    """
    return 2.0 ** math.ceil(math.log2(learning_rate) + _DIGITS)


def share_above(size: float, spread: float) -> float:
    """Of normally distributed weights with mean 0: how many are at least so large."""
    return math.erfc(size / (spread * math.sqrt(2)))
