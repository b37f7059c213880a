"""A function in a forked child with a time limit: a segmentation fault or a hang of it is only an answer of its own."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
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


def in_child(work: Callable[[], str], limit_seconds: float) -> str | Failed:
    """What `work` returns, run in a fork of this process, in a session of its own and with its output put away.

    The caller must not have started threads or a GPU.
    """
    asker = os.getppid()
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as log, os.fdopen(reading, "rb", buffering=0) as answer:
        pid = os.fork()
        if pid == 0:
            _be_child(work, writing, log, limit_seconds)
        os.close(writing)
        try:
            return _wait_for(pid, answer, log, limit_seconds, asker)
        finally:
            # What it started (compilers) is in its session, and has no reason to outlive it.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)


def _be_child(work: Callable[[], str], writing: int, log: IO[bytes], limit_seconds: float) -> None:
    code = 1
    try:
        os.setsid()
        # Its report of a crash is pages long, and the signal says it all.
        faulthandler.disable()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        signal.alarm(int(limit_seconds) + _ALARM_AFTER_SECONDS)
        text = work().encode()
        while text:
            text = text[os.write(writing, text) :]
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _wait_for(pid: int, answer: IO[bytes], log: IO[bytes], limit_seconds: float, asker: int) -> str | Failed:
    deadline = time.monotonic() + limit_seconds
    parts: list[bytes] = []
    ended = 0
    while not ended:
        if os.getppid() != asker:
            sys.exit("whoever asked is gone")
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return Failed(f"no answer in {limit_seconds:g} s")
        ended, status = os.waitpid(pid, os.WNOHANG)
        timeout = 0 if ended else _POLL_SECONDS
        while select.select([answer], [], [], timeout)[0] and (part := answer.read(65536)):
            parts.append(part)
            timeout = 0
        if not ended:
            time.sleep(_POLL_SECONDS)
    if os.WIFSIGNALED(status):
        return Failed(_with_last_words(f"killed by {signal.Signals(os.WTERMSIG(status)).name}", log))
    if os.WEXITSTATUS(status):
        return Failed(_with_last_words(f"ended with exit code {os.WEXITSTATUS(status)}", log))
    return b"".join(parts).decode() if parts else Failed(_with_last_words("ended without an answer", log))


def _with_last_words(why: str, log: IO[bytes]) -> str:
    """And the last line that it printed."""
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return f"{why}: {lines[-1].strip()[:300]}" if lines else why
