from __future__ import annotations

import pytest

from sft_cli.errors import UsageError
from sft_cli.launch.slurm import expand_hosts, expand_tasks, rendezvous_address


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[08-11,20],login", ["gpu08", "gpu09", "gpu10", "gpu11", "gpu20", "login"]),
        ("gpu[099-101]", ["gpu099", "gpu100", "gpu101"]),
        ("rack[1,3]-node[01-02].x", ["rack1-node01.x", "rack1-node02.x", "rack3-node01.x", "rack3-node02.x"]),
        ("a[1-2]b,c[4]", ["a1b", "a2b", "c4"]),
        ("gpu-a-7", ["gpu-a-7"]),
    ],
)
def test_expand_hosts(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(("text", "tasks"), [("", []), ("8", [8]), ("8(x2),4", [8, 8, 4]), ("1(x3)", [1, 1, 1])])
def test_expand_tasks(text: str, tasks: list[int]) -> None:
    assert expand_tasks(text) == tasks


def test_expand_tasks_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UsageError, match="`8x2`"):
        expand_tasks("8x2")


def step(job: int, number: int = 0, **more: str) -> dict[str, str]:
    return {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(number), "SLURM_JOB_NODELIST": "n[3-4]", **more}


def test_rank_0_is_on_the_steps_first_host() -> None:
    assert rendezvous_address(step(7))[0] == "n3"
    assert rendezvous_address(step(7, SLURM_STEP_NODELIST="n4"))[0] == "n4"


def test_ports_of_neighbouring_jobs_and_steps_differ() -> None:
    ports = [rendezvous_address(step(job, number))[1] for job in range(4_000_000, 4_000_050) for number in range(10)]
    assert len(set(ports)) == len(ports)
    assert all(20_000 <= port < 60_000 for port in ports)


def test_no_host() -> None:
    with pytest.raises(UsageError, match="SLURM_STEP_NODELIST"):
        rendezvous_address({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"})
