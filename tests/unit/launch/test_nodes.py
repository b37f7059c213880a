from __future__ import annotations

import pytest

from sft_cli.errors import RecipeError, SftError, UsageError
from sft_cli.launch.join import find_join
from sft_cli.launch.nodes import Nodes, find_nodes
from sft_cli.recipe.places import Places
from sft_cli.recipe.schema import LaunchSection

SLURM = {
    "SLURM_JOB_ID": "1000",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "2",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
PLACES = Places("r.yaml", {})


def test_one_machine_has_no_nodes() -> None:
    assert find_nodes(LaunchSection(), {}, PLACES) is None


def test_from_the_recipe() -> None:
    launch = LaunchSection(nodes=4, node_rank=3, rendezvous="gpu01:29500")
    assert find_nodes(launch, {}, PLACES) == Nodes(4, 3, "gpu01", 29500)
    assert find_nodes(launch.model_copy(update={"rendezvous": "[fe80::1]:7"}), {}, PLACES) == Nodes(4, 3, "fe80::1", 7)


@pytest.mark.parametrize("nodes", [1, 2])
def test_under_slurm_all_comes_from_the_environment(nodes: int) -> None:
    assert find_join(SLURM) is None
    found = find_nodes(LaunchSection(nodes=nodes), SLURM, PLACES)
    assert found == Nodes(2, 1, "gpu07", 20_000 + 31_000)


def test_the_recipe_may_name_another_interface_under_slurm() -> None:
    found = find_nodes(LaunchSection(rendezvous="gpu07-ib:1234"), SLURM, PLACES)
    assert found == Nodes(2, 1, "gpu07-ib", 1234)


def test_several_tasks_on_a_machine_are_ranks() -> None:
    environ = {**SLURM, "SLURM_NTASKS": "16", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}
    joined = find_join(environ)
    assert joined is not None
    assert joined.ranks.world_size == 16
    assert find_nodes(LaunchSection(), environ, PLACES) is None


@pytest.mark.parametrize(
    ("launch", "environ", "kind", "message"),
    [
        (LaunchSection(nodes=2, node_rank=0), {}, RecipeError, "where to meet"),
        (LaunchSection(nodes=2, rendezvous="a:1"), {}, RecipeError, "which of the 2 machines"),
        (LaunchSection(rendezvous="a:1"), {}, RecipeError, "one machine only"),
        (LaunchSection(nodes=3), SLURM, UsageError, "Slurm started one task on each of 2"),
        (LaunchSection(max_restarts=1), SLURM, UsageError, "for one machine"),
    ],
)  # fmt: skip
def test_refused(launch: LaunchSection, environ: dict[str, str], kind: type[SftError], message: str) -> None:
    with pytest.raises(kind, match=message):
        find_nodes(launch, environ, PLACES)


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("10.0.0.1", False), ("a", False)],
)
def test_loopback(host: str, is_loopback: bool) -> None:
    assert Nodes(2, 0, host, 1).is_loopback is is_loopback
