"""What packing promises, from rows to the tensors of every rank: nothing lost, doubled, reordered or leaked."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sft_cli.data.batch import IGNORED, Batch
from sft_cli.data.loader import Loader, evaluation_batches
from sft_cli.data.order import train_micro_batches
from sft_cli.data.rows import TokenizedRows, rows_from_lists

TOKENS = 32
ORDERS = ["shuffled", "sequential"]
BALANCES = ["none", "attention"]
thorough = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
many_rows = st.lists(
    st.tuples(st.integers(2, TOKENS), st.integers(0, 2**TOKENS - 1)), min_size=TOKENS, max_size=2 * TOKENS
)
Shapes = list[tuple[int, int]]


def rows_of(shapes: Shapes) -> TokenizedRows:
    """Every token of the data is another one, so that each can be found again; flags from the bits of a number."""
    ends = np.cumsum([length for length, _ in shapes]).tolist()
    return rows_from_lists(
        [
            (list(range(1 + end - length, 1 + end)), [bits >> index & 1 for index in range(length)])
            for (length, bits), end in zip(shapes, ends, strict=True)
        ]
    )


def segments(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """(token ids, targets) of each segment that holds a row, in order."""
    assert batch.segment_bounds is not None
    ids, targets = batch.input_ids[0].tolist(), batch.targets[0].tolist()
    cut = [(ids[start:end], targets[start:end]) for start, end in pairwise(batch.segment_bounds)]
    return [(tokens, wanted) for tokens, wanted in cut if tokens[0] != 0]


def plan_of(make_plan: Any, ranks: int, **batching: Any) -> Any:
    return make_plan(
        ranks=ranks, batching={"tokens": TOKENS, **batching}, train={"tokens_per_step": 2 * ranks * TOKENS, "epochs": 2}
    )


@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize("order", ORDERS)
@thorough
@given(shapes=many_rows, ranks=st.integers(1, 4))
def test_rows_come_out_as_they_went_in(make_plan, order: str, balance: str, shapes: Shapes, ranks: int) -> None:
    """Each row once an epoch, whole, in the order of its tokens, each supervised token once; over all ranks."""
    rows = rows_of(shapes)
    plan = plan_of(make_plan, ranks, order=order, balance=balance)
    seen: Counter[tuple[int, ...]] = Counter()
    targets: Counter[int] = Counter()
    for rank in range(ranks):
        for step in Loader(rows, plan, rank).steps():
            for batch in step.micro_batches:
                if batch.tokens:
                    seen.update(tuple(tokens) for tokens, _ in segments(batch))
                targets.update(batch.supervised_targets.tolist())
    assert seen == Counter({tuple(rows.row(row)[0].tolist()): 2 for row in range(len(rows))})
    wanted = [
        token
        for row in range(len(rows))
        for token, flag in list(zip(*(part.tolist() for part in rows.row(row)), strict=True))[1:]
        if flag
    ]
    assert targets == Counter(dict.fromkeys(wanted, 2))


@thorough
@given(shapes=many_rows, ranks=st.integers(1, 4))
def test_no_position_predicts_across_a_boundary(make_plan, shapes: Shapes, ranks: int) -> None:
    """The first token of a segment is nobody's target: shifted once, its label would have been -100."""
    rows = rows_of(shapes)
    firsts = {int(rows.row(row)[0][0]) for row in range(len(rows))}
    plan = plan_of(make_plan, ranks)
    batches = [batch for step in Loader(rows, plan, 0).steps() for batch in step.micro_batches]
    for batch in [*batches, *evaluation_batches(rows, plan, 0)]:
        bounds = batch.segment_bounds
        assert bounds is not None
        assert bounds[0] == 0
        assert bounds[-1] == batch.slots == TOKENS
        assert all(start < end for start, end in pairwise(bounds))
        assert batch.cu_seq_lens is not None
        assert batch.cu_seq_lens.tolist() == list(bounds)
        last = torch.tensor(bounds[1:]) - 1
        assert (batch.targets[0, last] == IGNORED).all()
        assert not firsts & set(batch.supervised_targets.tolist())
        for tokens, wanted in segments(batch):
            assert all(target in (IGNORED, tokens[at + 1]) for at, target in enumerate(wanted[:-1]))


@pytest.mark.parametrize("balance", BALANCES)
@thorough
@given(shapes=many_rows, ranks=st.integers(1, 5), seed=st.integers(0, 3))
def test_ranks_have_equal_packs_and_the_seed_says_which(
    make_plan, balance: str, shapes: Shapes, ranks: int, seed: int
) -> None:
    rows = rows_of(shapes)
    train = {"tokens_per_step": 2 * ranks * TOKENS, "seed": seed}
    plan, again = (
        make_plan(ranks=ranks, batching={"tokens": TOKENS, "balance": balance}, train=train) for _ in range(2)
    )
    counts = set()
    for rank in range(ranks):
        one, other = list(Loader(rows, plan, rank).steps()), list(Loader(rows, again, rank).steps())
        counts.add(tuple(len(step.micro_batches) for step in one))
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            for a, b in zip(left.micro_batches, right.micro_batches, strict=True):
                assert torch.equal(a.input_ids, b.input_ids)
                assert torch.equal(a.targets, b.targets)
                assert a.segment_bounds == b.segment_bounds
    assert len(counts) == 1


def test_another_seed_makes_other_packs_in_another_order(make_plan) -> None:
    rows = rows_of([(2 + 7 * row % 20, 3) for row in range(60)])
    plans = [make_plan(batching={"tokens": TOKENS}, train={"seed": seed}) for seed in (0, 1)]
    one, other = (train_micro_batches(rows, plan, 0).groups for plan in plans)
    assert one != other
    assert {frozenset(group) for group in one} != {frozenset(group) for group in other}
