"""This process in namespaces of its own: what it finds there afterwards, it has left. Linux, as root or as anybody."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

UNSHARE = ["unshare", "--user", "--map-root-user", "--mount", "--net", "--ipc", "--pid", "--fork", "--kill-child"]
UNSHARE += ["--mount-proc"]
"""Before the command of a script that calls `enter`."""
WORK = Path("/tmp/work")
"""A folder in the new /tmp."""
_SET_FLAGS, _IS_UP = 0x8914, 0x1


def enter(scratch: Path) -> None:
    """An empty /tmp and /dev/shm in memory, and a loopback; Python and the code stay where they are.

    Args:
        scratch: an empty folder.
    """
    _mount("-t", "tmpfs", "none", str(scratch))
    for path in {Path(sys.prefix), Path.cwd(), *map(Path, filter(None, os.environ["PYTHONPATH"].split(os.pathsep)))}:
        if path.is_dir() and path.is_relative_to("/tmp"):
            place = scratch / path.relative_to("/tmp")
            place.mkdir(parents=True, exist_ok=True)
            _mount("--rbind", str(path), str(place))
    (scratch / WORK.name).mkdir()
    _mount("--rbind", str(scratch), "/tmp")
    _mount("-t", "tmpfs", "none", "/dev/shm")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _IS_UP))


def temporary_files() -> set[str]:
    """Names in /tmp and /dev/shm."""
    return {str(path) for folder in ("/tmp", "/dev/shm") for path in Path(folder).iterdir()}


def processes() -> dict[int, str]:
    """Command line of every process but this one; those that have ended are cleared away first."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                break
        except ChildProcessError:
            break
    found = {int(path.name): path for path in Path("/proc").glob("[0-9]*") if int(path.name) != os.getpid()}
    return {pid: (path / "cmdline").read_text().replace("\0", " ") for pid, path in found.items()}


def sockets() -> list[str]:
    """Lines of the kernel's tables: everything that listens, and every Unix socket."""
    tables = [Path("/proc/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    listening = [line for table in tables for line in table if line.split()[3] == "0A"]
    return listening + Path("/proc/net/unix").read_text().splitlines()[1:]


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)
