from __future__ import annotations

import pytest

from sft_cli.errors import UsageError
from sft_cli.launch.join import find_join
from sft_cli.launch.ranks import Ranks

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_JOB_ID": "1000",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "12",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_STEP_TASKS_PER_NODE": "8,4",
}


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def test_under_torchrun_nothing_has_to_be_added() -> None:
    joined = find_join(TORCHRUN)
    assert joined is not None
    assert (joined.starter, joined.ranks, joined.environment) == ("torchrun", Ranks(3, 4, 1, 2), {})


def test_in_a_job_step_torch_is_told_what_slurm_knows() -> None:
    joined = find_join(SLURM)
    assert joined is not None
    assert joined.starter == "slurm"
    assert joined.ranks == Ranks(rank=9, world_size=12, local_rank=1, local_world_size=4)
    assert joined.environment == {
        "RANK": "9",
        "WORLD_SIZE": "12",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "gpu07",
        "MASTER_PORT": str(20_000 + 31_000),
    }


def test_in_a_job_step_what_the_user_set_wins() -> None:
    joined = find_join({**SLURM, "MASTER_ADDR": "ib0", "MASTER_PORT": "1234", "SLURM_CPUS_PER_TASK": "6"})
    assert joined is not None
    assert joined.environment["MASTER_ADDR"] == "ib0"
    assert joined.environment["MASTER_PORT"] == "1234"
    assert joined.environment["OMP_NUM_THREADS"] == "6"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "node", "MASTER_PORT": "1"},  # a node's, as Kubeflow sets them
        without(SLURM, "SLURM_STEP_ID"),  # the script of sbatch
        {**SLURM, "SLURM_NTASKS": "1"},
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1"},  # a shell in an allocation of 12
    ],
)
def test_not_joined(environ: dict[str, str]) -> None:
    assert find_join(environ) is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"RANK": "four"}, "`four` is not a whole number"),
        ({"RANK": "4"}, "rank 4 of 4"),
        ({"LOCAL_RANK": "2"}, "local"),
    ],
)
def test_variables_that_make_no_sense(changed: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_join({**TORCHRUN, **changed})
