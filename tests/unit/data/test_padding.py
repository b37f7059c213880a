"""Padded lengths: few, never too short, and the same number of slots wherever they are counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lengths import ultrachat_like

from sft_cli.data.batch import pad_rows
from sft_cli.data.loader import Loader, evaluation_batches
from sft_cli.data.order import epoch_steps, evaluation_micro_batches, train_micro_batches
from sft_cli.data.padding import pad_greedily, padded_length
from sft_cli.data.rows import rows_from_lists

with_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)


@settings(deadline=None)
@given(st.integers(2, 100_000), st.data())
def test_a_padded_length_holds_the_row_and_wastes_an_eighth_at_most(capacity: int, data: st.DataObject) -> None:
    longest = data.draw(st.integers(1, capacity))
    padded = padded_length(longest, capacity)
    assert longest <= padded <= capacity
    assert padded < longest + max(16, longest / 8)
    assert padded_length(padded, capacity) == padded


def test_there_are_few_lengths() -> None:
    every = {padded_length(longest, 8192) for longest in range(1, 8193)}
    assert len(every) == 56
    assert sorted(every)[:10] == [16, 32, 48, 64, 80, 96, 112, 128, 144, 160]
    assert sorted(every)[-3:] == [7168, 7680, 8192]
    assert {padded_length(longest, 100) for longest in range(90, 101)} == {96, 100}


@pytest.mark.parametrize("order", ["shuffled", "length_grouped", "sequential"])
@with_fixture
@given(
    lengths=st.lists(st.integers(2, 300), min_size=3, max_size=60),
    ranks=st.integers(1, 3),
    tokens_per_step=st.integers(1, 3000),
)
def test_slots_are_what_the_batches_have(make_plan, order: str, lengths: list[int], ranks: int, tokens_per_step: int):
    """The steps are cut, the metrics counted and `sftune data` shown from the same numbers."""
    rows = rows_from_lists([([1] * length, [1] * length) for length in lengths])
    plan = make_plan(
        ranks=ranks,
        batching={"mode": "padding", "order": order, "tokens": 300},
        train={"tokens_per_step": tokens_per_step},
    )
    batches = train_micro_batches(rows, plan, 0)
    if len(batches) < ranks:
        return
    _, steps = epoch_steps(rows, plan, 0)
    per_rank = [list(Loader(rows, plan, rank).steps()) for rank in range(ranks)]
    for step, rounds in enumerate(steps):
        for rank in range(ranks):
            for offset, batch in enumerate(per_rank[rank][step].micro_batches):
                index = (rounds.first + offset) * ranks + rank
                counted = index if index < len(batches) else index - rank
                assert batch.slots == batches.slots[counted] <= 300
                assert batch.tokens == (sum(lengths[row] for row in batches.groups[index]) if counted == index else 0)
    evaluation = evaluation_micro_batches(rows, plan)
    assert [batch.slots for batch in evaluation_batches(rows, make_plan(batching={"mode": "padding", "tokens": 300}), 0)
    ] == evaluation.slots.tolist()  # fmt: skip


def test_a_row_that_fills_a_micro_batch_fits_and_a_longer_one_is_a_bug() -> None:
    groups, slots = pad_greedily(np.array([3, 1000, 999]), np.arange(3), 1000)
    assert (groups, slots.tolist()) == ([[0], [1], [2]], [16, 1000, 1000])
    with pytest.raises(ValueError, match="doesn't fit"):
        pad_greedily(np.array([1001]), np.arange(1), 1000)
    with pytest.raises(ValueError, match="doesn't fit"):
        pad_rows(rows_from_lists([([1] * 9, [1] * 9)]), [0], 8)


@pytest.mark.parametrize(("order", "share", "shapes"), [("shuffled", 0.6, 100), ("length_grouped", 0.93, 60)])
def test_the_cost_on_chats(order: str, share: float, shapes: int) -> None:
    lengths = ultrachat_like(20_000)
    rows = np.argsort(lengths, kind="stable") if order == "length_grouped" else np.arange(len(lengths))
    groups, slots = pad_greedily(lengths, rows, 8192)
    assert lengths.sum() / slots.sum() > share
    assert (
        len({(len(group), total // len(group)) for group, total in zip(groups, slots.tolist(), strict=True)}) < shapes
    )
