"""Already started once a rank, by torchrun or srun: join that run and start nothing inside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from sft_cli.launch.environment import worker_environment
from sft_cli.launch.ranks import Ranks
from sft_cli.launch.resume import Resume
from sft_cli.launch.slurm import in_job_step, one_task_a_node, rendezvous_address, step_ranks
from sft_cli.launch.torchrun import worker_arguments
from sft_cli.plan.plan import World

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Joined:
    """The run that this process is part of."""

    starter: Literal["torchrun", "slurm"]
    ranks: Ranks
    environment: dict[str, str]
    """What torch.distributed needs and the starter did not set."""


def find_join(environ: Mapping[str, str]) -> Joined | None:
    """None where this process is the first of a run, or of a machine, and has to start the others.

    Raises:
        UsageError: the variables are there but make no sense.
    """
    if all(name in environ for name in _TORCHRUN):
        return Joined("torchrun", Ranks.from_environment(environ), {})
    if not in_job_step(environ) or one_task_a_node(environ):
        return None
    ranks = step_ranks(environ)
    host, port = rendezvous_address(environ)
    # Slurm may have bound this task to its own cores already, so they can't be divided among the tasks of the node.
    threads = {"OMP_NUM_THREADS": environ["SLURM_CPUS_PER_TASK"]} if "SLURM_CPUS_PER_TASK" in environ else {}
    return Joined(
        "slurm",
        ranks,
        {
            "RANK": str(ranks.rank),
            "WORLD_SIZE": str(ranks.world_size),
            "LOCAL_RANK": str(ranks.local_rank),
            "LOCAL_WORLD_SIZE": str(ranks.local_world_size),
            "MASTER_ADDR": environ.get("MASTER_ADDR", host),
            "MASTER_PORT": environ.get("MASTER_PORT", str(port)),
            **({} if "OMP_NUM_THREADS" in environ else threads),
        },
    )


def exec_worker(
    plan_path: Path,
    world: World,
    joined: Joined,
    logs: Path,
    *,
    dry_run: bool = False,
    resume: Resume | None = None,
    module: str = "sft_cli.worker",
    environ: Mapping[str, str] = os.environ,
) -> NoReturn:
    """Turns this process into the worker of its rank; exit code and signals are then the worker's own."""
    arguments = worker_arguments(plan_path, control=None, logs=logs, dry_run=dry_run, resume=resume)
    environment = worker_environment(world, {**environ, **joined.environment}, ranks_here=joined.ranks.local_world_size)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(sys.executable, [sys.executable, "-m", module, *arguments], environment)
