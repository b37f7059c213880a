"""How many processes a run has, and what each of them runs on."""

from __future__ import annotations

from sft_cli.errors import UsageError
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.plan import Choice, World
from sft_cli.recipe.places import Places
from sft_cli.recipe.schema import LaunchSection


def choose_world(
    launch: LaunchSection, hardware: Hardware, ranks: int | None, places: Places
) -> tuple[World, list[Choice]]:
    """The processes of a run.

    Args:
        ranks: processes over all nodes where a launcher has started them already; None where sftune will.

    Raises:
        UsageError: more processes than visible GPUs.
    """
    device, gpu_name, gpu_memory_gib = "cpu", None, None
    if hardware.gpus or hardware.named:
        device, gpu_name, gpu_memory_gib = "cuda", hardware.gpu_name, hardware.gpu_memory_gib
    choices = []
    if ranks is not None:
        choices.append(
            Choice(key="launch.gpus", value=ranks // launch.nodes, because=f"already launched as {ranks} processes")
        )
    elif launch.gpus == "auto":
        ranks = max(hardware.gpus, 1) * launch.nodes
        choices.append(Choice(key="launch.gpus", value=ranks // launch.nodes, because=_why(hardware)))
    else:
        ranks = launch.gpus * launch.nodes
        _require_gpus(launch.gpus, hardware, places)
    world = World(ranks=ranks, nodes=launch.nodes, device=device, gpu_name=gpu_name, gpu_memory_gib=gpu_memory_gib)
    return world, choices


def _require_gpus(gpus: int, hardware: Hardware, places: Places) -> None:
    if hardware.named or not hardware.gpus or gpus <= hardware.gpus:
        return
    visible = "1 GPU is" if hardware.gpus == 1 else f"{hardware.gpus} GPUs are"
    raise UsageError(
        f"{gpus} GPUs are asked for, but {visible} visible",
        where=places.of("launch.gpus"),
        fix=f"Use launch.gpus: {hardware.gpus} or auto; CUDA_VISIBLE_DEVICES may hide others.",
    )


def _why(hardware: Hardware) -> str:
    if hardware.gpus:
        return f"{hardware.gpus} visible GPU{'s' if hardware.gpus > 1 else ''}"
    if hardware.named:
        return f"one {hardware.gpu_name}, named with --gpu; set launch.gpus to plan for more"
    return "no GPU is visible: one process on the CPU"
