"""Rows of random tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence

from sft_cli.data.rows import TokenizedRows, rows_from_lists


def random_rows(lengths: Sequence[int], *, words: int, supervised_share: float = 0.6, seed: int = 0) -> TokenizedRows:
    """One row of each length, at least its last token supervised."""
    generator = random.Random(seed)
    rows = []
    for length in lengths:
        tokens = [generator.randrange(1, words) for _ in range(length)]
        rows.append((tokens, [int(generator.random() < supervised_share) for _ in tokens[1:]] + [1]))
    return rows_from_lists(rows)
