"""One log file a rank: everything that a worker prints, whoever prints it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO

STDIN_FD, STDOUT_FD, STDERR_FD = 0, 1, 2
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Streams:
    """What a worker can still reach of the terminal once its output goes to a file."""

    terminal: TextIO | None
    """The command's own stdout, for the progress of rank 0; None on other ranks."""
    errors: TextIO
    """stderr as it was before."""


def rank_log(logs: Path, rank: int) -> Path:
    return logs / f"rank-{rank}.log"


def launcher_log(logs: Path, node: int) -> Path:
    """Of torchrun on one node, and of workers before they open their own."""
    return logs / (f"launcher-{node}.log" if node else "launcher.log")


def event_log(logs: Path) -> Path:
    """What happened to the run, in the order of time."""
    return logs / "events.jsonl"


@contextmanager
def output_to_log(logs: Path, rank: int, *, terminal_fd: int = STDOUT_FD) -> Iterator[Streams]:
    """Sends file descriptors 1 and 2 of this process to `logs/rank-N.log`; restores them on leaving.

    Descriptors and not sys.stdout: C++ warnings and child processes write there too.

    Args:
        terminal_fd: where the command's stdout is. Under our own launcher that is 0, because torchrun passes a
            worker no other descriptor (see `torchrun.py`); 0 then reads from /dev/null.
    """
    logs.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with (
        rank_log(logs, rank).open("a", encoding="utf-8") as log,
        os.fdopen(os.dup(STDOUT_FD), "w", encoding="utf-8") as stdout_before,
        os.fdopen(os.dup(STDERR_FD), "w", encoding="utf-8", buffering=1) as stderr_before,
        os.fdopen(os.dup(terminal_fd), "w", encoding="utf-8", errors="replace", buffering=1) as terminal,
    ):
        log.write(f"=== {datetime.now().astimezone().isoformat(timespec='seconds')} rank {rank}, pid {os.getpid()}\n")
        log.flush()
        if terminal_fd == STDIN_FD:
            _read_nothing()
        os.dup2(log.fileno(), STDOUT_FD)
        os.dup2(log.fileno(), STDERR_FD)
        try:
            yield Streams(terminal if rank == 0 else None, stderr_before)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(stdout_before.fileno(), STDOUT_FD)
            os.dup2(stderr_before.fileno(), STDERR_FD)


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a text file that are not blank; none where there is no file."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def _read_nothing() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, STDIN_FD)
    os.close(nothing)
