"""Functions in a forked child, each with a time limit: a segmentation fault or a hang is only an answer of its own."""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

_POLL_SECONDS = 0.02
_ALARM_AFTER_SECONDS = 10
"""The child ends itself this long after its limit, should nobody be left to end it."""


@dataclass(frozen=True)
class Failed:
    """The child gave no answer."""

    why: str
    """`killed by SIGSEGV`, `no answer in 60 s`."""


def in_children(
    works: Sequence[Callable[[], str]], limit_seconds: float, *, is_fit: Callable[[str], bool] = lambda answer: True
) -> Iterator[str | Failed]:
    """What each of `works` returns, in order, run in a fork of this process: one for all of them, and a new one after
    each that gave no answer.

    A fork is a session of its own, with its output put away. The caller must not have started threads or a GPU.

    Args:
        limit_seconds: for each of them.
        is_fit: whether the fork that gave this answer is still good for the next.
    """
    done = 0
    while done < len(works):
        for answer in _in_child(works[done:], limit_seconds, is_fit):
            done += 1
            yield answer


def _in_child(
    works: Sequence[Callable[[], str]], limit_seconds: float, is_fit: Callable[[str], bool]
) -> Iterator[str | Failed]:
    """Answers of one fork, at least one; the last may be a failure."""
    asker = os.getppid()
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as log, os.fdopen(reading, "rb", buffering=0) as answers:
        pid = os.fork()
        if pid == 0:
            _be_child(works, writing, log, limit_seconds, is_fit)
        os.close(writing)
        try:
            yield from _follow(pid, len(works), answers, log, limit_seconds, asker)
        finally:
            # What it started (compilers) is in its session, and has no reason to outlive it.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _be_child(
    works: Sequence[Callable[[], str]],
    writing: int,
    log: IO[bytes],
    limit_seconds: float,
    is_fit: Callable[[str], bool],
) -> None:
    code = 1
    try:
        os.setsid()
        # Its report of a crash is pages long, and the signal says it all.
        faulthandler.disable()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        for work in works:
            signal.alarm(int(limit_seconds) + _ALARM_AFTER_SECONDS)
            answer = work()
            line = json.dumps(answer).encode() + b"\n"
            while line:
                line = line[os.write(writing, line) :]
            if not is_fit(answer):
                break
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _follow(
    pid: int, works: int, answers: IO[bytes], log: IO[bytes], limit_seconds: float, asker: int
) -> Iterator[str | Failed]:
    rest = b""
    given = 0
    deadline = time.monotonic() + limit_seconds
    while True:
        if os.getppid() != asker:
            sys.exit("whoever asked is gone")
        ended, status = os.waitpid(pid, os.WNOHANG)
        while select.select([answers], [], [], 0 if ended else _POLL_SECONDS)[0] and (part := answers.read(65536)):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                given += 1
                deadline = time.monotonic() + limit_seconds
                yield json.loads(line)
        if ended:
            break
        if time.monotonic() > deadline:
            yield Failed(f"no answer in {limit_seconds:g} s")
            return
        time.sleep(_POLL_SECONDS)
    if given == works or (given and not status):
        return  # a crash after the last answer is none
    if os.WIFSIGNALED(status):
        yield Failed(_with_last_words(f"killed by {signal.Signals(os.WTERMSIG(status)).name}", log))
    elif os.WEXITSTATUS(status):
        yield Failed(_with_last_words(f"ended with exit code {os.WEXITSTATUS(status)}", log))
    else:
        yield Failed(_with_last_words("ended without an answer", log))


def _with_last_words(why: str, log: IO[bytes]) -> str:
    """And the last line that it printed."""
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return f"{why}: {lines[-1].strip()[:300]}" if lines else why
