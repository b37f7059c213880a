"""What a run measures beside its steps, and where its lines go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from sft_cli.checkpoint.progress import Progress
from sft_cli.kernels.late import LateKernels
from sft_cli.launch.ranks import Ranks
from sft_cli.launch.run_folder import RunFolder
from sft_cli.parallel.device import allocator_retries, device_uuid
from sft_cli.plan.plan import Plan
from sft_cli.telemetry.gpu import gpu_sampler
from sft_cli.telemetry.health import Place
from sft_cli.telemetry.metrics_file import MetricsFile
from sft_cli.telemetry.rank_watch import RankWatch
from sft_cli.telemetry.trackers.tracker import Opening
from sft_cli.telemetry.trackers.trackers import Trackers, config_of
from sft_cli.train.report import Gauges
from sft_cli.train.step import TrainStep
from sft_cli.train.step_meters import StepMeters


@contextmanager
def assemble_gauges(
    plan: Plan, train_step: TrainStep, blocks: Sequence[nn.Module], say: Callable[[str], None], ranks: Ranks
) -> Iterator[Gauges]:
    """Puts its meters on the step, and samples the GPU while entered.

    Args:
        blocks: of the model, sharded.
        say: shows the user a line; silent on ranks other than 0.
    """
    device, late = train_step.device, LateKernels()
    late.begin(device)
    with gpu_sampler(device_uuid(device)) as sampler:
        if sampler.unavailable:
            say(f"the driver does not give {', '.join(sampler.unavailable)} of this GPU: left out of metrics.jsonl")
        train_step.meters = StepMeters.of_ranks(device, plan.world.ranks, blocks, sampler.health)
        yield Gauges(
            gpu=sampler.read,
            phases=train_step.meters.read,
            allocator_retries=lambda: allocator_retries(device),
            late_kernels=late.told,
            ranks=RankWatch(Place(plan.world.ranks, plan.world.ranks_per_node)) if ranks.rank == 0 else None,
        )


def assemble_sinks(
    plan: Plan, folder: RunFolder, say: Callable[[str], None], ranks: Ranks, progress: Progress | None
) -> tuple[MetricsFile | Trackers, ...]:
    """metrics.jsonl, and what `telemetry.trackers` names; to be entered. Nothing on ranks other than 0."""
    if ranks.rank > 0:
        return ()
    recipe = plan.recipe
    opening = Opening(
        folder.trackers,
        folder.path.absolute().name,
        config_of(recipe.model_dump()),
        resumed_at=0 if progress is None else progress.step,
    )
    return MetricsFile(folder.metrics_jsonl), Trackers(recipe.telemetry.trackers, opening, folder.logs, say)
