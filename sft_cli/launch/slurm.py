"""What Slurm tells a process of a job step about itself and its peers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sft_cli.errors import UsageError
from sft_cli.launch.ranks import Ranks, read_count

_FIRST_PORT, _LAST_PORT = 20_000, 60_000
_GROUP = re.compile(r"\[([^\]]*)\]")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def in_job_step(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process as one of several.

    The script of sbatch is no step, though it has most of the variables; a step of one task (`srun --pty bash`) is a
    shell from which a run starts its own processes.
    """
    required = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID")
    return all(name in environ for name in required) and _tasks(environ) > 1


def one_task_a_node(environ: Mapping[str, str]) -> bool:
    """Whether srun started one process on each of several machines: they are launchers, and no ranks."""
    if not in_job_step(environ):
        return False
    tasks = expand_tasks(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    return len(tasks) > 1 and set(tasks) == {1}


def step_ranks(environ: Mapping[str, str]) -> Ranks:
    """Raises UsageError where a variable is not a number."""
    local_rank = read_count(environ, "SLURM_LOCALID")
    per_node = expand_tasks(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = read_count(environ, "SLURM_NODEID") if "SLURM_NODEID" in environ else 0
    return Ranks(
        rank=read_count(environ, "SLURM_PROCID"),
        world_size=_tasks(environ),
        local_rank=local_rank,
        local_world_size=per_node[node] if node < len(per_node) else local_rank + 1,
    )


def rendezvous_address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Host and port where rank 0 listens: the step's first host, a port that follows from the job and its step.

    Raises:
        UsageError: no list of hosts.
    """
    hosts = expand_hosts(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", ""))
    if not hosts:
        raise UsageError("no host in it", where="environment: SLURM_STEP_NODELIST", fix="Start with srun.")
    job, step = read_count(environ, "SLURM_JOB_ID"), read_count(environ, "SLURM_STEP_ID")
    # Jobs that share a node have neighbouring numbers, and steps of one job too: keep both apart.
    return hosts[0], _FIRST_PORT + (31 * job + step) % (_LAST_PORT - _FIRST_PORT)


def expand_hosts(text: str) -> list[str]:
    """`gpu[01-03,7],login` -> gpu01 gpu02 gpu03 gpu7 login. Leading zeros are kept; brackets may come twice."""
    return [host for entry in _split_outside_brackets(text) for host in _expand_entry(entry)]


def expand_tasks(text: str) -> list[int]:
    """`8(x2),4` -> 8 8 4: tasks of each node, in order."""
    counts: list[int] = []
    for entry in filter(None, text.split(",")):
        match = _TASKS.fullmatch(entry)
        if not match:
            raise UsageError(f"`{entry}` is not a number of tasks", where="environment: SLURM_STEP_TASKS_PER_NODE")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _tasks(environ: Mapping[str, str]) -> int:
    """Of the step; SLURM_NTASKS may be the whole allocation's."""
    name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    return read_count(environ, name) if name in environ else 1


def _split_outside_brackets(text: str) -> Iterator[str]:
    for entry in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        yield entry.strip()


def _expand_entry(entry: str) -> list[str]:
    group = _GROUP.search(entry)
    if not group:
        return [entry] if entry else []
    before, after = entry[: group.start()], entry[group.end() :]
    rests = _expand_entry(after) if after else [""]
    return [f"{before}{number}{rest}" for number in _expand_numbers(group[1]) for rest in rests]


def _expand_numbers(text: str) -> Iterator[str]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not last:
            yield first
        else:
            yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
