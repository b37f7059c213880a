"""Runs `launched_worker` under the real launcher: `python launched_launcher.py LOGS RANKS [NODE PORT]`.

With a node it is one of two launchers on this machine, each with half of the ranks. With WITHOUT_TORCHRUN in the
environment, `launched_agent` starts them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from sft_cli.errors import SftError
from sft_cli.launch import supervise
from sft_cli.launch.meeting import Meeting
from sft_cli.launch.nodes import Nodes
from sft_cli.launch.torchrun import agent_command
from sft_cli.plan.plan import World


def without_torchrun(*arguments: Any, **options: Any) -> list[str]:
    return [
        "launched_agent" if word == "sft_cli.launch.agent" else word for word in agent_command(*arguments, **options)
    ]


def main() -> int:
    logs, ranks = Path(sys.argv[1]), int(sys.argv[2])
    supervise._AFTER_FAILURE_SECONDS = 1.0  # these workers need no longer
    if "WITHOUT_TORCHRUN" in os.environ:
        supervise.agent_command = without_torchrun
    meeting = None
    if len(sys.argv) > 3:
        nodes = Nodes(2, int(sys.argv[3]), "127.0.0.1", int(sys.argv[4]))
        meeting = Meeting(nodes, ranks // 2, {}, str(logs))
    world = World(ranks=ranks, nodes=1 if meeting is None else 2, device="cpu")
    try:
        return supervise.run_workers(
            logs / "plan.json",
            world,
            logs,
            saves="NOTHING_TO_SAVE" not in os.environ,
            meeting=meeting,
            module="launched_worker",
        )
    except SftError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
