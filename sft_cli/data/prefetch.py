"""The next step's batches, made while the current step runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def prefetched(items: Iterable[Item]) -> Iterator[Item]:
    """The same items, each computed by a thread while the one before it is in use; what it raises comes in its turn."""
    iterator = iter(items)
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
        waiting = thread.submit(next, iterator, end)
        while (item := waiting.result()) is not end:
            waiting = thread.submit(next, iterator, end)
            yield item  # type: ignore[misc]
