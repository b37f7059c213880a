from __future__ import annotations

import pytest

from sft_cli.errors import UsageError
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.plan import Choice, World
from sft_cli.plan.processes import choose_world
from sft_cli.recipe.places import Place, Places
from sft_cli.recipe.schema import LaunchSection

CPU = Hardware(0, None, None)
FOUR = Hardware(4, "NVIDIA H200", 140.0)
NAMED = Hardware(0, "NVIDIA H200", 140.0, named=True)
PLACES = Places("recipe.yaml", {("launch", "gpus"): Place("recipe.yaml", 7, 0)})


def world(launch: LaunchSection, hardware: Hardware, ranks: int | None = None) -> tuple[World, list[Choice]]:
    return choose_world(launch, hardware, ranks, PLACES)


@pytest.mark.parametrize(
    ("hardware", "ranks", "device", "because"),
    [
        (CPU, 1, "cpu", "no GPU is visible"),
        (FOUR, 4, "cuda", "4 visible GPUs"),
        (NAMED, 1, "cuda", "named with --gpu"),
    ],
)
def test_auto(hardware: Hardware, ranks: int, device: str, because: str) -> None:
    found, choices = world(LaunchSection(), hardware)
    assert (found.ranks, found.device, found.gpu_memory_gib) == (ranks, device, hardware.gpu_memory_gib)
    assert [(choice.key, choice.value) for choice in choices] == [("launch.gpus", ranks)]
    assert because in choices[0].because


@pytest.mark.parametrize(("hardware", "device"), [(CPU, "cpu"), (FOUR, "cuda"), (NAMED, "cuda")])
def test_a_number_is_taken_as_it_is(hardware: Hardware, device: str) -> None:
    found, choices = world(LaunchSection(gpus=2), hardware)
    assert (found.ranks, found.device, choices) == (2, device, [])


def test_more_than_the_visible_gpus_is_an_error() -> None:
    with pytest.raises(UsageError, match="8 GPUs are asked for, but 4 GPUs are visible") as caught:
        world(LaunchSection(gpus=8), FOUR)
    assert caught.value.where == "recipe.yaml:7: launch.gpus"
    assert world(LaunchSection(gpus=8), NAMED)[0].ranks == 8


def test_a_launcher_that_started_us_decides() -> None:
    found, choices = world(LaunchSection(gpus=4, nodes=2), CPU, ranks=6)
    assert (found.ranks, found.ranks_per_node, choices[0].value) == (6, 3, 3)


def test_nodes_multiply() -> None:
    assert world(LaunchSection(nodes=2), FOUR)[0] == World(
        ranks=8, nodes=2, device="cuda", gpu_name="NVIDIA H200", gpu_memory_gib=140.0
    )
