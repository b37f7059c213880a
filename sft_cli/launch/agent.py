"""torchrun in a process that dies with the launcher and writes down which ranks failed.

python -m sft_cli.launch.agent LAUNCHER_PID CONTROL_FOLDER TORCHRUN_ARGUMENTS...
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from sft_cli.errors import SftError, UsageError
from sft_cli.launch.control import ControlFolder
from sft_cli.launch.failures import describe_failure
from sft_cli.launch.meeting import Meeting
from sft_cli.launch.nodes import Nodes
from sft_cli.launch.peers import MEETING_SECONDS, Peers, Store
from sft_cli.launch.stop import STOP_SIGNALS
from sft_cli.launch.torchrun import AGENT_PID
from sft_cli.plan.orphans import die_with_parent

_SERVER_SECONDS = 60.0
_ANSWER_SECONDS = 20.0
"""How long the store may take to answer."""


def main() -> int:
    launcher_pid, control_path, *torchrun_arguments = sys.argv[1:]
    die_with_parent(int(launcher_pid))
    os.environ[AGENT_PID] = str(os.getpid())
    for number in STOP_SIGNALS:
        # A scheduler that signals every process of a job must not end torchrun before the workers have saved.
        signal.signal(number, signal.SIG_IGN)
    control = ControlFolder(Path(control_path))
    meeting = Meeting.read(control.path)
    if meeting is None:
        exits = _run(torchrun_arguments)
        if exits:
            control.write_exits(exits)
        return 1 if exits else 0
    try:
        peers = Peers(_store(meeting.nodes), meeting, control)
        peers.meet()
    except SftError as error:
        control.write_failure(describe_failure(error, meeting.first_rank))
        return 1
    peers.start()
    exits = {}
    try:
        exits = _run(torchrun_arguments)
    finally:
        hanging = control.hanging()
        peers.end({rank: code for rank, code in exits.items() if rank not in hanging})
    return 1 if exits else 0


def _run(arguments: list[str]) -> dict[int, int]:
    """Exit codes of the ranks that failed."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun(arguments)
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    return {}


def _store(nodes: Nodes) -> Store:
    """
    Raises:
        UsageError: the first node can't listen, or none answers there.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # its own stubs say not

    try:
        store: TCPStore = TCPStore(
            nodes.host,
            nodes.port,
            is_master=nodes.is_first,
            timeout=timedelta(seconds=_SERVER_SECONDS if nodes.is_first else MEETING_SECONDS),
            wait_for_workers=False,
            multi_tenant=True,  # torchrun finds it there and opens no other
        )
    except RuntimeError as error:
        how = "can't listen" if nodes.is_first else "finds no one"
        raise UsageError(
            f"node {nodes.rank} {how} at {nodes.address}: {str(error).splitlines()[0]}",
            where="launch.rendezvous",
            fix="It is a free port of node 0, under a name that all nodes know.",
        ) from error
    store.set_timeout(timedelta(seconds=_ANSWER_SECONDS))
    return store


if __name__ == "__main__":
    sys.exit(main())
