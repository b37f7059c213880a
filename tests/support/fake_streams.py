"""Streams of a GPU that is not here: work is queued, and run in any order that streams and events allow."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(eq=False)
class Event:
    is_over: bool = False


@dataclass(eq=False)
class Stream:
    gpu: Gpu
    queue: deque[Callable[[], bool]] = field(default_factory=deque)
    """Each runs, and says whether it could: what waits for an event stays."""

    def put(self, work: Callable[[], object]) -> None:
        def run() -> bool:
            work()
            return True

        self.queue.append(run)

    def record_event(self) -> Event:
        event = Event()
        self.put(lambda: setattr(event, "is_over", True))
        return event

    def wait_event(self, event: Event) -> None:
        self.queue.append(lambda: event.is_over)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        while self.queue:
            self.gpu.run_something()


class Gpu:
    """Args:
    seed: of the order in which streams get on.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._streams: list[Stream] = []
        self.current = self.new_stream()

    def new_stream(self) -> Stream:
        self._streams.append(Stream(self))
        return self._streams[-1]

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def current_stream(self, device: object = None) -> Stream:
        return self.current

    def run_something(self) -> None:
        """One piece of work of a stream that can get on."""
        waiting = [stream for stream in self._streams if stream.queue]
        self._random.shuffle(waiting)
        for stream in waiting:
            if stream.queue[0]():
                stream.queue.popleft()
                return
        raise AssertionError("every stream waits for another")

    def get_on(self) -> None:
        """Some of what is queued, or nothing."""
        for _ in range(self._random.randrange(8)):
            if any(stream.queue for stream in self._streams):
                self.run_something()
