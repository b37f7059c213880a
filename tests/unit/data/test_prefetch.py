from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sft_cli.data.prefetch import prefetched


def test_items_and_their_order_are_kept() -> None:
    assert list(prefetched(range(5))) == [0, 1, 2, 3, 4]
    assert list(prefetched([])) == []


def test_the_next_item_is_made_while_the_current_one_is_in_use() -> None:
    made = threading.Semaphore(0)

    def items() -> Iterator[int]:
        for index in range(3):
            yield index
            made.release()

    iterator = prefetched(items())
    assert next(iterator) == 0
    assert made.acquire(timeout=10)  # nobody asked for the second yet
    assert list(iterator) == [1, 2]


def test_an_error_comes_in_its_turn() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("a bad row")

    iterator = prefetched(items())
    assert next(iterator) == 1
    with pytest.raises(ValueError, match="a bad row"):
        next(iterator)


def test_leaving_early_leaves_no_thread() -> None:
    before = threading.active_count()
    iterator = prefetched(iter(int, 1))
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
