"""A function over many items in processes of its own: results in order, and a bounded number of items under way."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

from sft_cli.errors import SftError

MOST_PROCESSES = 32
"""One process reads for all of them; beyond this number they would wait for it."""
_ITEMS_AHEAD = 2
"""A process, counted from the result that is due: what bounds memory when one item takes longer than the others."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(function: Callable[[Item], Result], items: Iterator[Item], processes: int) -> Iterator[Result]:
    """`function` of each item, in the items' order, computed by forks of this process.

    Forks, because they share what the function holds (a tokenizer of hundreds of megabytes) and start at once; so
    whoever calls this has started neither a GPU nor threads whose locks the function takes. They are started as items
    come, and gone when this generator is closed, however that happens. When this process dies they end, too.

    Args:
        function: needs no state but its own; what it returns can be pickled.
        items: read in this process, at most `2 * processes` ahead of the result that is due.
        processes: how many forks at most.

    Raises:
        SftError: a fork was ended from outside.
        Exception: what `function` or `items` raised, in the order of the items; a RuntimeError with its traceback as a
            note in place of one that can't be pickled.
    """
    forks: list[_Fork[Item, Result]] = []
    outcomes: dict[int, Result | Failure] = {}
    sent = due = 0
    end: int | None = None
    """The number of the first item that does not exist."""
    try:
        while end is None or due < end:
            while end is None and sent < due + _ITEMS_AHEAD * processes:
                fork = next((fork for fork in forks if fork.number is None), None)
                if fork is None and len(forks) == processes:
                    break
                try:
                    item = next(items)
                except StopIteration:
                    end = sent
                    break
                except Exception as error:  # raised below, after the results of the items before it
                    outcomes[sent], end = Failure(error), sent + 1
                    break
                if fork is None:
                    fork = _Fork(function, forks)
                    forks.append(fork)
                fork.send(sent, item)
                sent += 1
            while due in outcomes:
                outcome = outcomes.pop(due)
                if isinstance(outcome, Failure):
                    raise outcome.error
                due += 1
                yield outcome
            if due not in outcomes and (busy := [fork for fork in forks if fork.number is not None]):
                ready = wait([fork.connection for fork in busy])
                outcomes.update(fork.receive() for fork in busy if fork.connection in ready)
    finally:
        for fork in forks:
            fork.kill()


class Failure:
    """An exception on its way to whoever waits for the result."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Fork(Generic[Item, Result]):
    """A forked process that computes one item at a time."""

    def __init__(self, function: Callable[[Item], Result], others: list[_Fork[Item, Result]]) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self.number: int | None = None
        """Of the item under way."""
        inherited = [self.connection, *(other.connection for other in others)]
        self._process = context.Process(target=_serve, args=(function, theirs, inherited), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, number: int, item: Item) -> None:
        try:
            self.connection.send(item)
        except ConnectionError as error:
            raise self._ended() from error
        self.number = number

    def receive(self) -> tuple[int, Result | Failure]:
        assert self.number is not None, "an item is under way"
        number, self.number = self.number, None
        try:
            return number, self.connection.recv()
        except (EOFError, ConnectionError) as error:
            raise self._ended() from error

    def _ended(self) -> SftError:
        return ended_from_outside(self._process)

    def kill(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.join()


def _serve(function: Callable[[Item], Result], connection: Connection, inherited: list[Connection]) -> None:
    """A fork's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
    gc.freeze()  # or the first collection would touch, and so copy, all that is shared with the parent
    for other in inherited:
        other.close()  # else this copy would keep another fork waiting when the parent is gone
    try:
        while True:
            connection.send(_outcome(function, connection.recv()))
    except (EOFError, ConnectionError):
        return  # the parent is gone


def _outcome(function: Callable[[Item], Result], item: Item) -> Result | Failure:
    try:
        return function(item)
    except Exception as error:  # carried over to the parent, which raises it
        return failure_of(error)


def failure_of(error: Exception) -> Failure:
    """What a fork sends in place of a result, from inside `except`; its error can be pickled."""
    told = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # some packages' errors can't be carried over; what they say can
        error = RuntimeError(str(error) or type(error).__name__)
    error.add_note(f"In a forked process:\n{told}")
    return Failure(error)


def ended_from_outside(process: BaseProcess) -> SftError:
    """Of a fork whose pipe has closed though it had more to send."""
    process.join()
    return SftError(
        f"a process that read data was ended from outside (exit code {process.exitcode})",
        fix="-9 mostly means that the machine ran out of memory.",
    )
