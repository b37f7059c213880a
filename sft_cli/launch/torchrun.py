"""The command line that starts one process a rank."""

from __future__ import annotations

import sys
from pathlib import Path

from sft_cli.launch.resume import Resume

AGENT_PID = "SFTUNE_AGENT_PID"
"""Environment variable in which a worker finds the process that must outlive it."""

TERMINAL_FD = 0
"""Where a worker finds the command's stdout. Descriptors 1 and 2 of torchrun and of a worker that has not opened its
own log yet go to launcher.log, and torchrun closes every other one when it starts a worker; a training process reads
nothing, so 0 is free to carry it."""


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


def agent_command(launcher_pid: int, *, control: Path, ranks: int, module: str, arguments: list[str]) -> list[str]:
    """torchrun for one machine, inside a process that dies with the launcher.

    `--standalone` lets the kernel choose a free port, so any number of runs share a machine.

    Args:
        ranks: processes on this machine.
        module: what each of them runs as `python -m module`.
    """
    torchrun = [
        "--standalone",
        f"--nproc-per-node={ranks}",
        "--max-restarts=0",
        # Where the machine's own name can't be resolved, workers would look for rank 0 under it for five minutes.
        "--local-addr=127.0.0.1",
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
