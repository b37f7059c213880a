"""How many micro-batches an optimizer step is made of."""

from __future__ import annotations

from sft_cli.recipe.schema import Recipe


def micro_batches_per_step(recipe: Recipe, ranks: int) -> int:
    """Over all ranks: whole rounds, a round being one micro-batch on every rank.

    With padding the fewest: a micro-batch is at most `batching.tokens` slots.
    """
    round_tokens = recipe.batching.tokens * ranks
    return -(-recipe.train.tokens_per_step // round_tokens) * ranks
