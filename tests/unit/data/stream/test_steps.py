"""Steps of a stream: the same number on every rank, each row on one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sft_cli.data.chat import EncodedChat
from sft_cli.data.order import epoch_steps
from sft_cli.data.rows import rows_from_lists
from sft_cli.data.stream import windows
from sft_cli.data.stream.rows import StreamRow
from sft_cli.data.stream.steps import RankStep, rank_steps
from sft_cli.errors import DataError

TOKENS = 16
with_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


@dataclass
class MadeUp:
    """A `Stream` of rows of these lengths; row i consists of the token i + 1."""

    lengths: list[int]
    reports: tuple[()] = ()

    def epoch(self, number: int) -> Generator[StreamRow]:
        for index, length in enumerate(self.lengths):
            chat = EncodedChat(np.full(length, index + 1, dtype=np.uint32), np.ones(length, dtype=np.uint8))
            yield StreamRow(chat, 0, (index + 1) / len(self.lengths))


def steps_of(plan, lengths: list[int], rank: int) -> list[RankStep]:
    return list(rank_steps(MadeUp(lengths), plan, rank))  # type: ignore[arg-type]


def tokens_seen(steps: list[RankStep]) -> Counter[int]:
    seen: Counter[int] = Counter()
    for step in steps:
        for part in step.micro_batches:
            if not part.is_filler:
                seen.update(part.rows.token_ids.tolist())
    return seen


@pytest.mark.parametrize("mode", ["packing", "padding"])
@with_fixture
@given(
    lengths=st.lists(st.integers(2, TOKENS), min_size=1, max_size=80),
    ranks=st.integers(1, 3),
    epochs=st.integers(1, 2),
    rounds=st.integers(1, 3),
    window=st.integers(1, 30),
    balance=st.booleans(),
)
def test_no_row_is_lost_or_doubled_for_any_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch,
    make_plan,
    mode: str,
    lengths: list[int],
    ranks: int,
    epochs: int,
    rounds: int,
    window: int,
    balance: bool,
) -> None:
    monkeypatch.setattr(windows, "WINDOW_ROWS", window)
    monkeypatch.setattr(windows, "_FEWEST_PACKS", 1)
    batching = {"mode": mode, "tokens": TOKENS, "balance": "attention" if balance and mode == "packing" else "none"}
    train = {"epochs": epochs, "tokens_per_step": rounds * ranks * TOKENS, "max_steps": 1000}
    plan = make_plan(ranks=ranks, batching=batching, train=train, data={"streaming": True})
    try:
        per_rank = [steps_of(plan, lengths, rank) for rank in range(ranks)]
    except DataError:
        assert sum(lengths) <= ranks * TOKENS * 2
        return
    for same_step in zip(*per_rank, strict=True):
        assert len({len(step.micro_batches) for step in same_step}) == 1
        assert len({(step.step, step.epoch, step.is_last, step.digest) for step in same_step}) == 1
    assert [step.step for step in per_rank[0]] == list(range(1, len(per_rank[0]) + 1))
    assert [step.is_last for step in per_rank[0]] == [False] * (len(per_rank[0]) - 1) + [True]
    assert per_rank[0][-1].epoch == epochs
    seen = sum((tokens_seen(steps) for steps in per_rank), Counter())
    assert seen == Counter({index + 1: epochs * length for index, length in enumerate(lengths)})


def test_max_steps_ends_an_endless_stream(make_plan) -> None:
    plan = make_plan(batching={"tokens": TOKENS}, train={"tokens_per_step": TOKENS, "max_steps": 3, "epochs": 10**9})
    steps = steps_of(plan, [TOKENS], 0)
    assert [(step.step, step.is_last) for step in steps] == [(1, False), (2, False), (3, True)]


def test_steps_are_those_of_the_same_data_without_streaming(make_plan) -> None:
    lengths = np.random.default_rng(0).integers(2, TOKENS + 1, 200).tolist()
    batching = {"tokens": TOKENS, "balance": "attention"}
    train = {"tokens_per_step": 4 * TOKENS, "max_steps": 1000}
    rows = rows_from_lists([([index + 1] * length, [1] * length) for index, length in enumerate(lengths)])
    plan = make_plan(ranks=2, batching=batching, train=train)
    batches, rounds = epoch_steps(rows, plan, 0)
    kept = [[batches.groups[2 * index + 1] for index in range(step.first, step.end)] for step in rounds[:-1]]
    streamed = [
        [[int(part.rows.row(row)[0][0]) - 1 for row in range(len(part.rows))] for part in step.micro_batches]
        for step in steps_of(plan, lengths, 1)
    ]
    assert streamed[: len(kept)] == kept


def test_a_digest_tells_steps_of_other_rows_apart_and_a_last_one_from_one_that_is_not(make_plan) -> None:
    def digest(lengths: list[int], epochs: int = 1) -> int:
        train = {"tokens_per_step": 4 * TOKENS, "max_steps": 9, "epochs": epochs}
        return steps_of(make_plan(batching={"tokens": TOKENS}, train=train), lengths, 0)[0].digest

    assert digest([9, 12]) == digest([9, 12])
    assert len({digest([9, 12]), digest([9, 13]), digest([9, 12, 12]), digest([9, 12], epochs=2)}) == 4


def test_a_short_round_is_completed_with_a_filler(make_plan) -> None:
    plan = make_plan(ranks=2, batching={"tokens": TOKENS}, train={"tokens_per_step": 1, "max_steps": 9})
    (real,), (filler,) = (steps_of(plan, [TOKENS] * 3, rank)[-1].micro_batches for rank in (0, 1))
    assert (real.is_filler, filler.is_filler) == (False, True)
    assert filler.slots == real.slots == TOKENS


def test_fewer_packs_than_ranks_is_an_error_on_every_rank(make_plan) -> None:
    plan = make_plan(ranks=3, batching={"tokens": TOKENS}, train={"max_steps": 9})
    for rank in range(3):
        with pytest.raises(DataError, match="2 rows make 2 packs of 16 token slots, for 3 ranks"):
            steps_of(plan, [TOKENS] * 2, rank)
