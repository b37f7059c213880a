"""The command line that starts one process a rank."""

from __future__ import annotations

import sys
from pathlib import Path

from sft_cli.launch.nodes import Nodes
from sft_cli.launch.resume import Resume

AGENT_PID = "SFTUNE_AGENT_PID"
"""Environment variable in which a worker finds the process that must outlive it."""

TERMINAL_FD = 0
"""Where a worker finds the command's stdout. Descriptors 1 and 2 of torchrun and of a worker that has not opened its
own log yet go to launcher.log, and torchrun closes every other one when it starts a worker; a training process reads
nothing, so 0 is free to carry it."""

_ONE_MACHINE = (
    # The kernel chooses a free port, so any number of runs share a machine.
    "--standalone",
    # Where the machine's own name can't be resolved, workers would look for rank 0 under it for five minutes.
    "--local-addr=127.0.0.1",
)


def worker_arguments(
    plan_path: Path, *, control: Path | None, logs: Path, dry_run: bool, resume: Resume | None = None
) -> list[str]:
    """What `sft_cli.worker` is called with."""
    arguments = ["--plan", str(plan_path), "--logs", str(logs)]
    if resume is not None:
        arguments += resume.arguments()
    if control is not None:
        arguments += ["--control", str(control)]
    return [*arguments, "--dry-run"] if dry_run else arguments


def agent_command(
    launcher_pid: int, *, control: Path, ranks: int, module: str, arguments: list[str], nodes: Nodes | None = None
) -> list[str]:
    """torchrun for this machine, inside a process that dies with the launcher.

    Args:
        ranks: processes on this machine.
        module: what each of them runs as `python -m module`.
    """
    torchrun = [
        *(_ONE_MACHINE if nodes is None else _several_machines(nodes)),
        f"--nproc-per-node={ranks}",
        "--max-restarts=0",
        # Stop signals go to the workers alone: told to stop, torchrun would kill them 30 s later, amid a save.
        "--signals-to-handle=SIGQUIT",
        f"--log-dir={control / 'torchrun'}",
        "-m",
        # Else torchrun takes the worker's --logs for a shortened option of its own.
        "--",
        module,
        *arguments,
    ]
    return [sys.executable, "-m", "sft_cli.launch.agent", str(launcher_pid), str(control), *torchrun]


def _several_machines(nodes: Nodes) -> list[str]:
    """All meet in the store that the agent of the first one has opened.

    Not torchrun's elastic rendezvous, which numbers machines as it likes: rank 0 would not be where the run folder is.
    """
    return [
        f"--nnodes={nodes.count}",
        f"--node-rank={nodes.rank}",
        "--rdzv-backend=static",
        f"--rdzv-endpoint={nodes.address}",
        "--rdzv-id=sftune",
    ]
