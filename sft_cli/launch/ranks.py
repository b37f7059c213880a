"""Which process of a run this one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sft_cli.errors import UsageError


@dataclass(frozen=True)
class Ranks:
    """The place of one process among all of a run."""

    rank: int
    """Over all nodes, from 0."""
    world_size: int
    local_rank: int
    """On this node, from 0: the index of its GPU."""
    local_world_size: int

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Ranks:
        """Reads what torchrun sets: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE.

        Raises:
            UsageError: a variable is missing, not a number, or out of range.
        """
        rank = read_count(environ, "RANK")
        world_size = read_count(environ, "WORLD_SIZE")
        local_rank = read_count(environ, "LOCAL_RANK")
        local_world_size = read_count(environ, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environ else local_rank + 1
        if not rank < world_size or not local_rank < local_world_size:
            raise UsageError(
                f"rank {rank} of {world_size} and local rank {local_rank} of {local_world_size} don't fit together",
                where="environment: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE",
                fix="Start with torchrun or srun, or unset these variables.",
            )
        return cls(rank, world_size, local_rank, local_world_size)


def read_count(environ: Mapping[str, str], name: str) -> int:
    """A whole number from 0 in the environment.

    Raises:
        UsageError: the variable is missing or something else.
    """
    text = environ.get(name, "")
    if not (text.isascii() and text.isdigit()):
        problem = f"`{text}` is not a whole number" if name in environ else "not set"
        raise UsageError(problem, where=f"environment: {name}", fix="Start with torchrun or srun, which set it.")
    return int(text)
