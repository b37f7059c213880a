"""Packs of one step dealt to ranks so that none waits long for another's attention. Pure.

Packs have the same slots, and all that grows with slots costs the same; softmax attention costs the squares of the
rows' lengths. Ranks meet in every layer of every micro-batch (they gather each other's shards), so what counts is that
the packs that run at the same time are alike, not that a rank's packs add up to as much as another's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def attention_costs(groups: Sequence[Sequence[int]], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """(packs,) int64: the sum of the squared lengths of each pack's rows; its empty end costs nothing that matters."""
    if not groups:
        return np.empty(0, dtype=np.int64)
    sizes = np.array([len(group) for group in groups])
    rows = np.concatenate([np.asarray(group, dtype=np.int64) for group in groups])
    return np.add.reduceat(lengths[rows].astype(np.int64) ** 2, np.cumsum(sizes) - sizes)


def even_rounds(costs: NDArray[np.int64], ranks: int) -> list[int]:
    """An order of a step's packs, of which every `ranks` in a row make a round: the dearest first.

    Neighbours in sorted order make the sum over rounds of the dearest pack as small as it can be. Every other round is
    turned around, so that ranks add up to about as much over the step, too.

    Args:
        costs: (packs,) of one step; those left over by whole rounds make a last, short round of the cheapest.
        ranks: packs of a round.

    Returns:
        Indices into `costs`, each once.
    """
    order = np.argsort(-costs, kind="stable").tolist()
    rounds = [order[first : first + ranks] for first in range(0, len(order), ranks)]
    return [index for turn, round_ in enumerate(rounds) for index in (round_[::-1] if turn % 2 else round_)]
