"""A stream's rows in micro-batches: each once, in windows, with memory that does not grow."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lengths import ultrachat_like

from sft_cli.data.chat import EncodedChat
from sft_cli.data.order import train_micro_batches
from sft_cli.data.rows import rows_from_lists
from sft_cli.data.stream import windows
from sft_cli.data.stream.rows import StreamRow
from sft_cli.data.stream.windows import stream_batches
from sft_cli.recipe.schema import Recipe

with_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
ReadEpoch = Callable[[int], Generator[StreamRow]]
ORDERS = [
    ("packing", "shuffled"),
    ("packing", "sequential"),
    ("padding", "shuffled"),
    ("padding", "sequential"),
    ("padding", "length_grouped"),
]


def chat_of(length: int, token: int = 1) -> EncodedChat:
    return EncodedChat(np.full(length, token, dtype=np.uint32), np.ones(length, dtype=np.uint8))


def rows_of(lengths: list[int]) -> ReadEpoch:
    """Row i consists of the token i + 1, in every epoch."""

    def rows(epoch: int) -> Generator[StreamRow]:
        for index, length in enumerate(lengths):
            yield StreamRow(chat_of(length, index + 1), 0, (index + 1) / len(lengths))

    return rows


def recipe_of(mode: str, order: str, tokens: int = 16, **sections: Any) -> Recipe:
    batching = {"mode": mode, "order": order, "tokens": tokens}
    return Recipe.model_validate({"model": {"path": "m"}, "data": {"train": "d"}, "batching": batching, **sections})


def small_windows(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(windows, "WINDOW_ROWS", rows)
    monkeypatch.setattr(windows, "_FEWEST_PACKS", 2)


def groups(batches: Iterable[windows.StreamBatch]) -> list[list[int]]:
    """The rows of each micro-batch, by their token."""
    return [[int(chat.token_ids[0]) - 1 for chat in batch.rows] for batch in batches]


@pytest.mark.parametrize(("mode", "order"), ORDERS)
@with_fixture
@given(lengths=st.lists(st.integers(2, 16), min_size=1, max_size=120), window=st.integers(1, 30))
def test_each_row_is_in_one_micro_batch_that_it_fits(
    monkeypatch: pytest.MonkeyPatch, mode: str, order: str, lengths: list[int], window: int
) -> None:
    small_windows(monkeypatch, window)
    batches = list(stream_batches(rows_of(lengths), recipe_of(mode, order)))
    assert Counter(row for group in groups(batches) for row in group) == Counter(range(len(lengths)))
    for batch in batches:
        each = [len(chat.token_ids) for chat in batch.rows]
        used = sum(each) if mode == "packing" else max(each) * len(each)
        assert used <= batch.slots <= 16
    epochs = [batch.epochs for batch in batches]
    assert epochs == sorted(epochs)
    assert [batch.ends_epoch for batch in batches] == [False] * (len(batches) - 1) + [True]
    assert epochs[-1] == 1.0


@pytest.mark.parametrize(("mode", "order"), ORDERS)
@pytest.mark.parametrize("epoch", [0, 2])
def test_one_window_makes_the_micro_batches_of_the_same_data_without_streaming(
    make_plan, mode: str, order: str, epoch: int
) -> None:
    lengths = np.random.default_rng(0).integers(2, 17, 300).tolist()
    batching = {"mode": mode, "order": order, "tokens": 16}
    plan = make_plan(batching=batching, train={"seed": 7, "epochs": 3})
    kept = train_micro_batches(rows_from_lists([([1] * length, [1] * length) for length in lengths]), plan, epoch)
    streamed = [batch for batch in stream_batches(rows_of(lengths), plan.recipe) if epoch < batch.epochs <= epoch + 1]
    assert groups(streamed) == kept.groups
    assert [batch.slots for batch in streamed] == kept.slots.tolist()


@pytest.mark.parametrize("mode", ["packing", "padding"])
def test_sequential_windows_leave_no_trace(monkeypatch: pytest.MonkeyPatch, make_plan, mode: str) -> None:
    small_windows(monkeypatch, 7)
    lengths = np.random.default_rng(1).integers(2, 17, 300).tolist()
    plan = make_plan(batching={"mode": mode, "order": "sequential", "tokens": 16})
    kept = train_micro_batches(rows_from_lists([([1] * length, [1] * length) for length in lengths]), plan, 0)
    assert groups(stream_batches(rows_of(lengths), plan.recipe)) == kept.groups


def test_the_order_follows_from_the_seed_and_differs_between_epochs_and_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_windows(monkeypatch, 50)
    lengths = [8] * 100

    def order(seed: int = 0) -> list[list[int]]:
        train = {"seed": seed, "epochs": 2}
        return groups(stream_batches(rows_of(lengths), recipe_of("packing", "shuffled", train=train)))

    assert order() == order()
    assert order() != order(seed=1)
    assert order()[:50] != order()[50:]
    first, second = order()[:25], order()[25:50]
    assert [[row + 50 for row in group] for group in first] != second


def test_memory_does_not_grow_with_the_stream() -> None:
    """40,000 rows; never more of them alive than two windows and what waits."""
    alive: weakref.WeakSet[StreamRow] = weakref.WeakSet()
    most = 0

    def rows(epoch: int) -> Generator[StreamRow]:
        nonlocal most
        lengths = ultrachat_like(40_000)
        for index, length in enumerate(lengths.tolist()):
            row = StreamRow(chat_of(length), 0, (index + 1) / len(lengths))
            alive.add(row)
            most = max(most, len(alive))
            yield row

    slots = tokens = 0
    for batch in stream_batches(rows, recipe_of("packing", "shuffled", 8192)):
        slots += batch.slots
        tokens += sum(len(chat.token_ids) for chat in batch.rows)
    assert tokens == ultrachat_like(40_000).sum()
    assert most < 2.5 * windows.WINDOW_ROWS
    assert tokens / slots > 0.997


def test_long_rows_make_smaller_windows() -> None:
    read = 0

    def rows(epoch: int) -> Generator[StreamRow]:
        nonlocal read
        for index in range(2000):
            read += 1
            yield StreamRow(chat_of(32_000), 0, index / 2000)

    next(stream_batches(rows, recipe_of("packing", "shuffled", 32_768)))
    assert read < 2 * windows.WINDOW_TOKENS / 32_000


def test_short_rows_make_windows_of_many_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,096 rows of 16 tokens would fill half of one pack; a window is four here, so the second one is short."""
    monkeypatch.setattr(windows, "_FEWEST_PACKS", 4)
    batches = list(stream_batches(rows_of([16] * 40_000), recipe_of("packing", "shuffled", 131_072)))
    assert len(batches) == -(-40_000 * 16 // 131_072)


def test_windows_are_read_evenly_across_epochs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or one step in a thousand would wait for thousands of rows."""
    small_windows(monkeypatch, 40)
    read = 0

    def rows(epoch: int) -> Generator[StreamRow]:
        nonlocal read
        for row in rows_of([8] * 400)(epoch):
            read += 1
            yield row

    before, most = 0, 0
    for number, _ in enumerate(stream_batches(rows, recipe_of("packing", "shuffled", train={"epochs": 3}))):
        most = max(most, read - before if number else 0)
        before = read
    assert read == 1200
    assert most <= 4
