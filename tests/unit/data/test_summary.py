"""Numbers of `sftune data` against numbers counted by hand, and against the batches that training gets."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import random_rows

from sft_cli.data.loader import Loader
from sft_cli.data.rows import TokenizedRows, rows_from_lists
from sft_cli.data.summary import MOST_BINS, WAYS, compare_batching, histogram, measure
from sft_cli.errors import DataError

LENGTHS = st.lists(st.integers(1, 300_000), min_size=1, max_size=60)


def rows_of(lengths: list[int]) -> TokenizedRows:
    return rows_from_lists([([1] * length, [0] + [1] * (length - 1)) for length in lengths])


def test_lengths() -> None:
    found = measure(np.array([10, 20, 30, 40, 100]))
    assert (found.total, found.mean, found.p50, found.max) == (200, 40.0, 30.0, 100)
    assert found.p90 == pytest.approx(76)  # six tenths of the way from 40 to 100
    assert found.p99 == pytest.approx(97.6)


def test_equal_bins() -> None:
    bins = histogram(np.array([60, 61, 64, 65, 74, 95]))
    assert {(found.low, found.high): found.rows for found in bins if found.rows} == {
        (60, 61): 2,
        (64, 65): 2,
        (74, 75): 1,
        (94, 95): 1,
    }


def test_growing_bins() -> None:
    bins = histogram(np.array([100, 110, 130, 4000, 8192]))
    assert {(found.low, found.high): found.rows for found in bins if found.rows} == {
        (100, 124): 2,
        (125, 159): 1,
        (4000, 4999): 1,
        (8000, 9999): 1,
    }


@given(LENGTHS)
def test_each_row_is_in_one_bin(lengths: list[int]) -> None:
    bins = histogram(np.array(lengths))
    assert len(bins) <= MOST_BINS
    assert all(left.high + 1 == right.low for left, right in pairwise(bins))
    for found in bins:
        assert found.rows == sum(found.low <= length <= found.high for length in lengths)
    assert sum(found.rows for found in bins) == len(lengths)


def test_batching_by_hand(make_plan) -> None:
    """Four rows of 768 and four of 256 in micro-batches of 1,024 slots: packs of one of each are full."""
    rows = rows_of([768, 256] * 4)
    plan = make_plan(batching={"tokens": 1024, "mode": "packing"}, train={"tokens_per_step": 2048})
    ways = {(way.mode, way.order): way for way in compare_batching(rows, plan)}
    assert set(ways) == set(WAYS)
    packing = ways["packing", "shuffled"]
    assert (packing.real_share, packing.micro_batches, packing.examples_per_micro_batch) == (1.0, 4, 2.0)
    assert (packing.steps, packing.examples_per_step, packing.is_recipes) == (2, 4.0, True)
    grouped = ways["padding", "length_grouped"]
    assert (grouped.real_share, grouped.micro_batches, grouped.is_recipes) == (1.0, 5, False)  # 4 x 256, then 768 alone


def test_another_order_of_the_recipe_is_listed_too(make_plan) -> None:
    plan = make_plan(batching={"tokens": 8, "order": "sequential"})
    ways = compare_batching(rows_of([6, 2, 6]), plan)
    assert [(way.mode, way.order) for way in ways if way.is_recipes] == [("packing", "sequential")]
    assert len(ways) == 4


def test_fewer_micro_batches_than_ranks_has_no_steps(make_plan) -> None:
    plan = make_plan(batching={"tokens": 8}, ranks=2)
    packing = compare_batching(rows_of([6, 2]), plan)[-1]
    assert (packing.mode, packing.micro_batches, packing.steps, packing.examples_per_step) == ("packing", 1, None, None)


def test_weights_that_leave_no_row_are_refused_as_training_refuses_them(make_plan) -> None:
    plan = make_plan(data={"train": [{"path": "builtin:chat", "weight": 0.3}]}, batching={"tokens": 8})
    rows = rows_of([6])
    for refused in (lambda: compare_batching(rows, plan), lambda: list(Loader(rows, plan, 0).steps())):
        with pytest.raises(DataError, match=r"weight 0\.3 of 1 rows is not one row an epoch"):
            refused()


@pytest.mark.parametrize(("mode", "order"), [*WAYS, ("packing", "sequential"), ("padding", "sequential")])
@pytest.mark.parametrize("weight", [1.0, 2.5])
def test_it_is_what_training_gets(make_plan, mode: str, order: str, weight: float) -> None:
    generator = random.Random(7)
    rows = random_rows([generator.randrange(2, 90) for _ in range(101)], words=50)
    plan = make_plan(
        data={"train": [{"path": "builtin:chat", "weight": weight}]},
        batching={"tokens": 100, "mode": mode, "order": order},
        train={"tokens_per_step": 300, "epochs": 1},
    )
    (way,) = (way for way in compare_batching(rows, plan) if way.is_recipes)
    steps = list(Loader(rows, plan, 0).steps())
    batches = [batch for step in steps for batch in step.micro_batches]
    slots, tokens = sum(batch.slots for batch in batches), sum(batch.tokens for batch in batches)
    assert (way.steps, way.micro_batches) == (len(steps), len(batches))
    assert way.real_share == pytest.approx(tokens / slots)
    starts = sum(int((batch.position_ids == 0).sum()) for batch in batches)
    if mode == "padding":
        assert way.examples_per_micro_batch == pytest.approx(starts / len(batches))
        assert way.examples_per_step == pytest.approx(starts / len(steps))
