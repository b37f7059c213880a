"""What the kernel tells of a process that is another one's child."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_ENDED = ("Z", "X")
"""States of a process that has ended and that its parent has not waited for."""
_EXITING = 0x4
"""PF_EXITING of linux/sched.h: it only frees its memory, which takes seconds where that is hundreds of gigabytes."""
# Fields of /proc/PID/stat after the name, from 0; `man proc_pid_stat` counts from 1 and the name is its second.
_STATE, _FLAGS, _EXIT_CODE = 0, 6, 49


def is_alive(pid: int) -> bool:
    """Whether a process can still do something: not where it is gone, nor where it is dead or dying.

    A dead process whose parent is too busy to wait for it can still be sent signals, like a living one. Where there
    is no /proc, it counts as alive.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not _is_ending(_stat(pid)) and not _is_dumping(pid)


def exit_code(pid: int) -> int | None:
    """Of a process that is dead or dying; minus the signal's number where a signal killed it, as subprocess has it.

    None where that is not known: it is gone or alive, or 0 is told, as it is to those who may not know.
    """
    fields = _stat(pid)
    return os.waitstatus_to_exitcode(int(fields[_EXIT_CODE])) or None if _is_ending(fields) else None


def _is_ending(fields: list[str]) -> bool:
    return bool(fields) and (fields[_STATE] in _ENDED or bool(int(fields[_FLAGS]) & _EXITING))


def _stat(pid: int) -> list[str]:
    """Its fields after the name; none where there is no /proc, or the process has just gone."""
    with suppress(FileNotFoundError, ProcessLookupError):
        # The name may hold anything, a `)` too.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def _is_dumping(pid: int) -> bool:
    """It has crashed, and its memory is being written to a file."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return "CoreDumping:\t1" in Path(f"/proc/{pid}/status").read_text(errors="replace")
    return False
