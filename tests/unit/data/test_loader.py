from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sft_cli.data.loader import Loader, StepBatches, evaluation_batches
from sft_cli.data.rows import TokenizedRows, rows_from_lists
from sft_cli.errors import DataError

TOKENS = 16
with_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)


def rows_of(lengths: list[int]) -> TokenizedRows:
    """Row i consists of the token i + 1, so that a batch tells its rows."""
    return rows_from_lists([([index + 1] * length, [1] * length) for index, length in enumerate(lengths)])


def tokens_seen(steps: list[StepBatches]) -> Counter[int]:
    """How many slots of each token have been seen outside fillers."""
    seen: Counter[int] = Counter()
    for step in steps:
        for batch in step.micro_batches:
            if batch.tokens:
                seen.update(batch.input_ids.flatten().tolist())
    del seen[0]
    return seen


@pytest.mark.parametrize("mode", ["packing", "padding"])
@with_fixture
@given(
    lengths=st.lists(st.integers(2, TOKENS), min_size=8, max_size=40),
    ranks=st.integers(1, 4),
    epochs=st.integers(1, 2),
    rounds=st.integers(1, 3),
)
def test_no_row_is_lost_or_doubled_for_any_number_of_ranks(
    make_plan, mode: str, lengths: list[int], ranks: int, epochs: int, rounds: int
) -> None:
    train = {"epochs": epochs, "tokens_per_step": rounds * ranks * TOKENS}
    plan = make_plan(ranks=ranks, batching={"mode": mode, "tokens": TOKENS}, train=train)
    rows = rows_of(lengths)
    try:
        loaders = [Loader(rows, plan, rank) for rank in range(ranks)]
    except DataError:
        assert sum(lengths) <= ranks * TOKENS * 2
        return
    per_rank = [list(loader.steps()) for loader in loaders]
    assert {len(steps) for steps in per_rank} == {loaders[0].total_steps}
    for same_step in zip(*per_rank, strict=True):
        assert len({len(step.micro_batches) for step in same_step}) == 1
        assert len({(step.step, step.epoch) for step in same_step}) == 1
    assert [step.step for step in per_rank[0]] == list(range(1, loaders[0].total_steps + 1))
    assert per_rank[0][-1].epoch == epochs
    seen = sum((tokens_seen(steps) for steps in per_rank), Counter())
    assert seen == Counter({index + 1: epochs * length for index, length in enumerate(lengths)})


def test_a_short_round_is_completed_with_a_filler_that_counts_in_slots(make_plan) -> None:
    plan = make_plan(ranks=2, batching={"tokens": TOKENS}, train={"tokens_per_step": 1})
    steps = [list(Loader(rows_of([TOKENS] * 3), plan, rank).steps()) for rank in (0, 1)]
    (real,), (filler,) = (steps[rank][-1].micro_batches for rank in (0, 1))
    assert (real.tokens, filler.tokens) == (TOKENS, 0)
    assert filler.supervised_tokens == 0
    assert filler.slots == real.slots == TOKENS


@pytest.mark.parametrize("mode", ["packing", "padding"])
@pytest.mark.parametrize("balance", ["none", "attention"])
@with_fixture
@given(
    lengths=st.lists(st.integers(2, TOKENS), min_size=12, max_size=40),
    ranks=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    epochs=st.integers(1, 2),
    share=st.floats(0, 1),
)
def test_resumed_on_other_ranks_no_row_is_lost_or_doubled(
    make_plan, mode: str, balance: str, lengths: list[int], ranks: tuple[int, int], epochs: int, share: float
) -> None:
    """And on as many, the steps are exactly those that would have been."""
    if (mode, balance) == ("padding", "attention"):
        return
    batching, train = {"mode": mode, "tokens": TOKENS, "balance": balance}, {"epochs": epochs, "tokens_per_step": 48}
    plans = [make_plan(ranks=count, batching=batching, train=train) for count in ranks]
    rows = rows_of(lengths)
    try:
        before = [list(Loader(rows, plans[0], rank).steps()) for rank in range(ranks[0])]
        at = before[0][int(share * (len(before[0]) - 1))]
        assert at.position is not None
        loaders = [Loader(rows, plans[1], rank, at.position) for rank in range(ranks[1])]
    except DataError:
        return
    after = [list(loader.steps(at.step)) for loader in loaders]
    assert [step.step for step in after[0]] == list(range(at.step + 1, loaders[0].total_steps + 1))
    seen = sum((tokens_seen(steps[: at.step]) for steps in before), Counter())
    seen += sum((tokens_seen(steps) for steps in after), Counter())
    assert seen == Counter({index + 1: epochs * length for index, length in enumerate(lengths)})
    if ranks[0] == ranks[1]:
        for one, other in zip(before, after, strict=True):
            assert [(s.step, s.epoch, s.position) for s in one[at.step :]] == [
                (s.step, s.epoch, s.position) for s in other
            ]
            digests = [
                [batch.digest for step in steps for batch in step.micro_batches] for steps in (one[at.step :], other)
            ]
            assert digests[0] == digests[1]


@pytest.mark.parametrize("start", [0, 1, 4, 5, 9, 10])
def test_starting_later_gives_the_steps_of_an_unbroken_run(make_plan, start: int) -> None:
    plan = make_plan(batching={"tokens": TOKENS}, train={"epochs": 3, "tokens_per_step": TOKENS, "max_steps": 10})
    loader = Loader(rows_of([9, 10, 11, 12]), plan, 0)
    unbroken, resumed = list(loader.steps()), list(loader.steps(start))
    assert loader.total_steps == len(unbroken) == 10
    assert [step.step for step in resumed] == list(range(start + 1, 11))
    for one, other in zip(unbroken[start:], resumed, strict=True):
        assert one.epoch == other.epoch
        for a, b in zip(one.micro_batches, other.micro_batches, strict=True):
            assert torch.equal(a.input_ids, b.input_ids)


def test_the_epoch_is_a_fraction_between_steps(make_plan) -> None:
    plan = make_plan(batching={"tokens": TOKENS}, train={"epochs": 2, "tokens_per_step": TOKENS})
    epochs = [step.epoch for step in Loader(rows_of([TOKENS] * 4), plan, 0).steps()]
    assert epochs == [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]


@pytest.mark.parametrize("mode", ["packing", "padding"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_evaluation_sees_each_row_once_and_every_rank_the_same_number(make_plan, mode: str, ranks: int) -> None:
    lengths = [3, 16, 5, 2, 9]
    plan = make_plan(ranks=ranks, batching={"mode": mode, "tokens": TOKENS}, data={"eval": "a.jsonl"})
    per_rank = [list(evaluation_batches(rows_of(lengths), plan, rank)) for rank in range(ranks)]
    assert len({len(batches) for batches in per_rank}) == 1
    assert sum(batch.tokens for batches in per_rank for batch in batches) == sum(lengths)
    assert sum(batch.supervised_tokens for batches in per_rank for batch in batches) == sum(lengths) - len(lengths)
