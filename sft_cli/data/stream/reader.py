"""A process that reads, tokenises and packs a stream, so that the one which trains never waits for Python to do so.

It is forked before there is a GPU, a process group or a thread. It fills its first window while the model is built,
then works a step or two ahead of training: the pipe takes no more.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from sft_cli.data.parallel import Failure, ended_from_outside, failure_of
from sft_cli.data.stream.rows import Stream
from sft_cli.data.stream.steps import RankStep, rank_steps
from sft_cli.plan.cores import usable_cores
from sft_cli.plan.orphans import die_with_parent
from sft_cli.plan.plan import Plan

_TOKENIZER_THREADS = "RAYON_NUM_THREADS"


class Reader:
    """One rank's steps, on their way from the process that makes them. See `open_reader`."""

    def __init__(self, connection: Connection, process: BaseProcess) -> None:
        self._connection = connection
        self._process = process
        self._first: RankStep | None = None

    def first(self) -> RankStep:
        """The first step of the run, whichever the run starts with.

        Raises:
            DataError: no step can be made of the data.
            SftError: the process was ended from outside.
        """
        if self._first is None:
            self._first = self._receive()
            assert self._first is not None, "a stream without a step is an error"
        return self._first

    def steps(self, start_step: int) -> Iterator[RankStep]:
        """The steps after this one, once.

        Raises:
            DataError: a row or file can't be used.
            SftError: the process was ended from outside.
        """
        first = self.first()
        try:
            self._connection.send(start_step)
        except ConnectionError as error:
            raise ended_from_outside(self._process) from error
        if start_step < first.step:
            yield first
        while (step := self._receive()) is not None:
            yield step

    def _receive(self) -> RankStep | None:
        try:
            received: RankStep | Failure | None = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            raise ended_from_outside(self._process) from error
        if isinstance(received, Failure):
            raise received.error
        return received


@contextmanager
def open_reader(plan: Plan, rank: int) -> Generator[Reader]:
    """Start reading for one rank; what reads is gone at the end, however that comes.

    Args:
        plan: with pinned sources and a tokenizer folder.
        rank: of this process, over all nodes.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(plan, rank, theirs, ours, os.getpid()), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Reader(ours, process)
    finally:
        ours.close()
        process.kill()
        process.join()


def _serve(plan: Plan, rank: int, connection: Connection, inherited: Connection, parent_pid: int) -> None:
    """The process's whole life: the first step, then, once it is told where the run starts, all after that."""
    die_with_parent(parent_pid)
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for the parent, which ends this process
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()  # or the first collection would touch, and so copy, all that is shared with the parent
    inherited.close()
    os.environ.setdefault(_TOKENIZER_THREADS, str(max(1, usable_cores() // plan.world.ranks_per_node)))
    try:
        _send_steps(plan, rank, connection)
    except (EOFError, ConnectionError):
        return  # the parent needs no more


def _send_steps(plan: Plan, rank: int, connection: Connection) -> None:
    try:
        steps = rank_steps(Stream(plan), plan, rank)
        connection.send(next(steps))
        start_step = connection.recv()
        for step in steps:
            if step.step > start_step:
                connection.send(step)
    except (EOFError, ConnectionError):
        raise
    except Exception as error:  # carried over to the parent, which raises it
        connection.send(failure_of(error))
    else:
        connection.send(None)
