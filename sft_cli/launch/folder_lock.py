"""A run folder has one run at a time."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from sft_cli.errors import UsageError

LOCK = ".lock"
_FLOCK = struct.Struct("hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, process."""


class FolderLock:
    """Holds the file `LOCK` in a folder until released, or until this process is gone, however it ends.

    A record lock (POSIX) and not flock: it belongs to this process alone, so no child can keep it after the
    launcher's death, and it survives exec, through which a launcher becomes a worker.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, folder: Path) -> FolderLock:
        """
        Raises:
            UsageError: another process has it.
            OSError: the folder can't be written to, or its file system has no locks.
        """
        path = folder / LOCK
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:  # EAGAIN or EACCES: POSIX leaves the choice
                holder = os.read(descriptor, 32).decode(errors="replace").strip()
                os.close(descriptor)
                raise UsageError(
                    f"a run is already on in this folder (process {holder or 'unknown'})",
                    where=str(folder),
                    fix="Wait for it, stop it, or choose another output_dir.",
                ) from error
            if _is_same_file(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
                return cls(path, descriptor)
            # The run that held it has just ended and removed the file: the lock is on a file nobody else will find.
            os.close(descriptor)

    def keep_through_exec(self) -> None:
        os.set_inheritable(self._descriptor, True)

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def is_held(folder: Path) -> bool | None:
    """Whether another process has the lock of a folder; takes nothing. None where that can't be asked.

    Never in a process that holds it: closing any descriptor of the file would release it.
    """
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:  # somebody else's folder, or one whose file system is gone
        return None
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind: int = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[0]
        return kind != fcntl.F_UNLCK
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(descriptor)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
