from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sft_cli.data.order import (
    MicroBatches,
    count_steps,
    epoch_steps,
    evaluation_micro_batches,
    steps_of_epoch,
    train_micro_batches,
)
from sft_cli.data.padding import padded_length
from sft_cli.data.rows import TokenizedRows, rows_from_lists
from sft_cli.errors import DataError

TOKENS = 32
ORDERS = [
    ("packing", "shuffled"),
    ("packing", "sequential"),
    ("padding", "shuffled"),
    ("padding", "length_grouped"),
    ("padding", "sequential"),
]
by_order = pytest.mark.parametrize(("mode", "order"), ORDERS)
with_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)


def rows_of(lengths: list[int], source_of_row: list[int] | None = None) -> TokenizedRows:
    return rows_from_lists([(list(range(1, length + 1)), [1] * length) for length in lengths], source_of_row)


def batching(mode: str, order: str = "shuffled") -> dict[str, object]:
    return {"mode": mode, "order": order, "tokens": TOKENS}


@by_order
@with_fixture
@given(lengths=st.lists(st.integers(1, TOKENS), min_size=1, max_size=40), epoch=st.integers(0, 3))
def test_an_epoch_has_each_row_once_and_fits(make_plan, mode: str, order: str, lengths: list[int], epoch: int) -> None:
    rows = rows_of(lengths)
    batches = train_micro_batches(rows, make_plan(batching=batching(mode, order)), epoch)
    assert sorted(row for group in batches.groups for row in group) == list(range(len(lengths)))
    for group, slots in zip(batches.groups, batches.slots, strict=True):
        sizes = [lengths[row] for row in group]
        assert slots == (TOKENS if mode == "packing" else len(sizes) * padded_length(max(sizes), TOKENS))
        assert sum(sizes) <= slots <= TOKENS


@by_order
def test_the_order_follows_from_seed_and_epoch(make_plan, mode: str, order: str) -> None:
    rows = rows_of([1 + (7 * row) % 20 for row in range(50)])
    plan = make_plan(batching=batching(mode, order))
    first, again, second = (train_micro_batches(rows, plan, epoch).groups for epoch in (0, 0, 1))
    other_seed = train_micro_batches(rows, make_plan(batching=batching(mode, order), train={"seed": 1}), 0).groups
    assert first == again
    assert (first == second) == (first == other_seed) == (order == "sequential")


@by_order
def test_the_list_does_not_depend_on_the_number_of_ranks(make_plan, mode: str, order: str) -> None:
    rows = rows_of([1 + (7 * row) % 20 for row in range(50)])
    one, four = (
        train_micro_batches(rows, make_plan(batching=batching(mode, order), ranks=ranks), 0).groups for ranks in (1, 4)
    )
    assert one == four


@pytest.mark.parametrize("mode", ["packing", "padding"])
def test_sequential_keeps_the_order_of_the_files(make_plan, mode: str) -> None:
    rows = rows_of([20, 3, 15, 9, 30, 2])
    batches = train_micro_batches(rows, make_plan(batching=batching(mode, "sequential")), 3)
    assert [row for group in batches.groups for row in group] == list(range(6))


def test_length_grouping_pads_less_than_a_random_order(make_plan) -> None:
    lengths = [20 + (11 * row) % 231 for row in range(231)]
    slots = {}
    for order in ("shuffled", "length_grouped"):
        plan = make_plan(batching=batching("padding", order) | {"tokens": 1024})
        slots[order] = train_micro_batches(rows_of(lengths), plan, 0).slots.sum()
    assert slots["length_grouped"] < 0.9 * slots["shuffled"]
    assert slots["length_grouped"] < 1.1 * sum(lengths)


def test_a_weight_repeats_rows_and_draws_the_fraction_anew_each_epoch(make_plan) -> None:
    rows = rows_of([4] * 20, [0] * 10 + [1] * 10)
    train = [{"path": "a.jsonl", "weight": 2.5}, {"path": "b.jsonl", "weight": 0.3}]
    plan = make_plan(data={"train": train}, batching=batching("packing"))
    seen = [Counter(row for group in train_micro_batches(rows, plan, e).groups for row in group) for e in range(3)]
    for counts in seen:
        assert sorted(counts[row] for row in range(10)) == [2] * 5 + [3] * 5
        assert sorted(counts[row] for row in range(10, 20)) == [0] * 7 + [1] * 3
    assert seen[0] != seen[1] != seen[2]


def test_a_weight_of_which_nothing_is_left_is_refused(make_plan) -> None:
    """And not a source that nobody sees."""
    rows = rows_of([4] * 20, [0] * 10 + [1] * 10)
    train = [{"path": "a.jsonl"}, {"path": "b.jsonl", "weight": 0.01}]
    plan = make_plan(data={"train": train}, batching=batching("packing"))
    with pytest.raises(DataError, match=r"weight 0\.01 of 10 rows is not one row an epoch") as caught:
        train_micro_batches(rows, plan, 0)
    assert (caught.value.where, caught.value.exit_code) == ("b.jsonl", 3)


def test_evaluation_has_each_row_once_whatever_the_weights_and_the_seed(make_plan) -> None:
    rows = rows_of([5, 30, 7, 8, 9])
    evaluation = [{"path": "a.jsonl", "weight": 2.5}]
    for mode in ("packing", "padding"):
        plans = [
            make_plan(data={"eval": evaluation}, batching=batching(mode, "sequential"), train={"seed": seed})
            for seed in (0, 1)
        ]
        one, other = (evaluation_micro_batches(rows, plan).groups for plan in plans)
        assert one == other
        assert sorted(row for group in one for row in group) == list(range(5))


@given(
    slots=st.lists(st.integers(1, TOKENS), min_size=1, max_size=50),
    ranks=st.integers(1, 5),
    tokens_per_step=st.integers(1, 300),
)
def test_steps_take_whole_rounds_until_their_slots_suffice(slots: list[int], ranks: int, tokens_per_step: int) -> None:
    batches = MicroBatches([[row] for row in range(len(slots))], np.array(slots))
    steps = steps_of_epoch(batches, ranks, tokens_per_step)
    rounds = -(-len(slots) // ranks)
    assert [index for step in steps for index in range(step.first, step.end)] == list(range(rounds))

    def slots_of(first: int, end: int) -> int:
        """With a filler as wide as the first micro-batch of its round."""
        return sum(
            slots[index * ranks + rank] if index * ranks + rank < len(slots) else slots[index * ranks]
            for index in range(first, end)
            for rank in range(ranks)
        )

    for step in steps:
        assert slots_of(step.first, step.end) >= tokens_per_step or step is steps[-1]
        assert slots_of(step.first, step.end - 1) < tokens_per_step


def test_an_epoch_ends_with_a_smaller_step(make_plan) -> None:
    rows = rows_of([TOKENS] * 7)
    plan = make_plan(batching=batching("packing"), train={"tokens_per_step": 3 * TOKENS, "epochs": 2})
    assert [step.end - step.first for step in epoch_steps(rows, plan, 0)[1]] == [3, 3, 1]
    assert count_steps(rows, plan) == 6


def test_max_steps_cuts(make_plan) -> None:
    rows = rows_of([TOKENS] * 7)
    train = {"tokens_per_step": TOKENS, "epochs": 5}
    assert count_steps(rows, make_plan(batching=batching("packing"), train=train | {"max_steps": 9})) == 9
    assert count_steps(rows, make_plan(batching=batching("packing"), train=train | {"max_steps": 900})) == 35


def test_fewer_packs_than_ranks_is_an_error_of_the_data(make_plan) -> None:
    rows = rows_of([TOKENS] * 3)
    assert count_steps(rows, make_plan(batching=batching("packing"), ranks=3)) == 1
    with pytest.raises(DataError, match="fewer packs than ranks: 3 rows make 3 packs") as caught:
        count_steps(rows, make_plan(batching=batching("packing"), ranks=4, train={"epochs": 9}))
    assert caught.value.exit_code == 3
    assert caught.value.where == "builtin:chat"
    assert "batching.tokens" in caught.value.fix
