"""`batching.balance: attention`: the same packs in the same steps, beside others that cost as much."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lengths import ultrachat_like

from sft_cli.data.balance import attention_costs, even_rounds
from sft_cli.data.loader import Loader
from sft_cli.data.order import MicroBatches, StepRounds, epoch_steps
from sft_cli.data.rows import TokenizedRows, rows_from_lists

with_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)


def rows_of_lengths(lengths: np.ndarray) -> TokenizedRows:
    tokens = int(lengths.sum())
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    sources = np.zeros(len(lengths), dtype=np.int32)
    return TokenizedRows(np.ones(tokens, dtype=np.uint32), np.ones(tokens, dtype=np.uint8), offsets, sources)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), min_size=1), min_size=1))
def test_costs_are_sums_of_squares(groups: list[list[int]]) -> None:
    lengths = np.array([1, 10, 100, 3, 7, 50])
    expected = [sum(int(lengths[row]) ** 2 for row in group) for group in groups]
    assert attention_costs(groups, lengths).tolist() == expected


@settings(deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 9))
def test_rounds_have_each_pack_once_and_no_order_has_a_smaller_sum_of_the_dearest(costs: list[int], ranks: int) -> None:
    order = even_rounds(np.array(costs), ranks)
    assert sorted(order) == list(range(len(costs)))
    rounds = [[costs[index] for index in order[first : first + ranks]] for first in range(0, len(order), ranks)]
    assert all(min(earlier) >= max(later) for earlier, later in pairwise(rounds))
    assert sum(map(max, rounds)) <= sum(max(costs[first : first + ranks]) for first in range(0, len(costs), ranks))


def steps_as_sets(batches: MicroBatches, steps: list[StepRounds], ranks: int) -> list[Counter[tuple[int, ...]]]:
    return [Counter(map(tuple, batches.groups[step.first * ranks : step.end * ranks])) for step in steps]


@with_fixture
@given(
    lengths=st.lists(st.integers(2, 64), min_size=20, max_size=80),
    ranks=st.integers(1, 4),
    rounds=st.integers(1, 4),
    epoch=st.integers(0, 1),
)
def test_a_step_keeps_its_packs(make_plan, lengths: list[int], ranks: int, rounds: int, epoch: int) -> None:
    rows = rows_from_lists([([1] * length, [1] * length) for length in lengths])
    train = {"tokens_per_step": rounds * ranks * 64, "epochs": 2}
    plain, even, again = (
        make_plan(ranks=ranks, batching={"tokens": 64, "balance": balance}, train=train)
        for balance in ("none", "attention", "attention")
    )
    before, after = epoch_steps(rows, plain, epoch), epoch_steps(rows, even, epoch)
    assert before[1] == after[1]
    assert steps_as_sets(*before, ranks) == steps_as_sets(*after, ranks)
    assert after[0].groups == epoch_steps(rows, again, epoch)[0].groups
    per_rank = [list(Loader(rows, even, rank).steps()) for rank in range(ranks)]
    assert len({len(steps) for steps in per_rank}) == 1
    assert sum(batch.tokens for steps in per_rank for step in steps for batch in step.micro_batches) == 2 * sum(lengths)


@pytest.mark.parametrize("micro_batches", [4, 16])
def test_what_it_gains_on_chats(make_plan, micro_batches: int) -> None:
    """The dearest pack of a round over the mean of its round, for eight ranks: docs/data.md has the numbers."""
    rows, ranks = rows_of_lengths(ultrachat_like(20_000)), 8
    worst = {}
    for balance in ("none", "attention"):
        train = {"tokens_per_step": micro_batches * ranks * 8192}
        plan = make_plan(ranks=ranks, batching={"balance": balance}, train=train)
        batches, _ = epoch_steps(rows, plan, 0)
        costs = attention_costs(batches.groups, rows.lengths)
        whole = costs[: len(costs) // ranks * ranks].reshape(-1, ranks)
        worst[balance] = float((whole.max(axis=1) / whole.mean(axis=1)).mean())
    assert worst["none"] > 1.3
    assert worst["attention"] < 1 + (worst["none"] - 1) / 2
