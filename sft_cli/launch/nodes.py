"""Which machine of a run this one is, and where all of them meet: from the recipe, or from what Slurm says."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from sft_cli.errors import RecipeError, UsageError
from sft_cli.launch.slurm import one_task_a_node, rendezvous_address, step_ranks
from sft_cli.recipe.places import Places
from sft_cli.recipe.problems import Problem, raise_for
from sft_cli.recipe.rules import restarts_of_several
from sft_cli.recipe.schema import LaunchSection


@dataclass(frozen=True)
class Nodes:
    """The place of one machine among all of a run. Each has a launcher, which starts that machine's ranks."""

    count: int
    rank: int
    """From 0. The first one has the run folder, and serves the store through which they talk."""
    host: str
    """Name or address of the first one."""
    port: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """All "machines" are this one."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def find_nodes(launch: LaunchSection, environ: Mapping[str, str], places: Places) -> Nodes | None:
    """None for a run on one machine.

    Raises:
        RecipeError: which machine this is, or where they meet, is said neither in the recipe nor by Slurm.
        UsageError: recipe and Slurm differ.
    """
    in_slurm = one_task_a_node(environ)
    if not in_slurm:
        raise_for(_unsaid(launch), places, RecipeError)
        if launch.nodes == 1:
            return None
    count, rank = launch.nodes, launch.node_rank
    if in_slurm:
        ranks = step_ranks(environ)
        _require_agreement(launch, ranks.world_size, places)
        count, rank = ranks.world_size, rank if rank is not None else ranks.rank
    host, port = split_address(launch.rendezvous) if launch.rendezvous else rendezvous_address(environ)
    assert rank is not None
    return Nodes(count, rank, host, port)


def split_address(text: str) -> tuple[str, int]:
    """`host:port`; the recipe's rules have looked at its form."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _unsaid(launch: LaunchSection) -> list[Problem]:
    problems = []
    if launch.nodes == 1:
        if launch.rendezvous is not None:
            problems.append(Problem("launch.rendezvous", "there is one machine only", "Remove it, or set `nodes`."))
        return problems
    if launch.rendezvous is None:
        what = f"{launch.nodes} machines need to know where to meet"
        fix = "Write `rendezvous: host:port` of the first machine, or start with srun, one task a node."
        problems.append(Problem("launch.nodes", what, fix))
    if launch.node_rank is None:
        what = f"which of the {launch.nodes} machines is this one?"
        fix = f"Add `--set launch.node_rank=N` to the command, another on each from 0 to {launch.nodes - 1}."
        problems.append(Problem("launch.node_rank", what, fix))
    return problems


def _require_agreement(launch: LaunchSection, tasks: int, places: Places) -> None:
    if launch.nodes not in (1, tasks):
        raise UsageError(
            f"{launch.nodes} machines are asked for, and Slurm started one task on each of {tasks}",
            where=places.of("launch.nodes"),
            fix=f"Use `#SBATCH --nodes={launch.nodes}`, or leave launch.nodes out: Slurm tells.",
        )
    problem = restarts_of_several(tasks, launch.max_restarts)
    raise_for([] if problem is None else [problem], places, UsageError)
