"""From a plan to a model that is compiled, warmed up and checked, and may take its first step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.checkpoint.progress import Progress
from sft_cli.checkpoint.state import restore_state
from sft_cli.data.loader import Loader, Steps
from sft_cli.data.order import DataPosition
from sft_cli.data.prepare import prepare, prepare_evaluation
from sft_cli.data.report import DataReport
from sft_cli.data.rows import TokenizedRows
from sft_cli.data.stream.loader import StreamLoader
from sft_cli.data.stream.reader import Reader
from sft_cli.kernels.fla import InnerBackends
from sft_cli.kernels.manifest import Found
from sft_cli.launch.rank_session import RankSession
from sft_cli.launch.resume import Resume
from sft_cli.model.safetensors_folder import SafetensorsFolder
from sft_cli.optim.adamw import build_adamw
from sft_cli.optim.host_memory import HostMemory
from sft_cli.optim.in_backward import InBackward
from sft_cli.optim.schedule import learning_rate_ratio
from sft_cli.plan.memory import GIB
from sft_cli.plan.plan import Plan
from sft_cli.telemetry.meter import Meter
from sft_cli.telemetry.start_up import (
    CHECKS,
    DATA,
    IMPORTS,
    KERNELS,
    MODEL,
    OPTIMIZER,
    REGIONS,
    WARM_UP,
    StartUp,
)
from sft_cli.telemetry.terminal import TerminalView
from sft_cli.train.exactness_report import Exactness
from sft_cli.train.position import data_position
from sft_cli.train.step import TrainStep
from sft_cli.train.warm_up import warm_up
from sft_cli.worker.assemble import (
    assemble_meter,
    assemble_model,
    kernel_layers,
    pass_exactness_gate,
    pass_kernels_check,
)
from sft_cli.worker.export import open_source
from sft_cli.worker.prewarm import compiling_ahead
from sft_cli.worker.regions import describe_regions, gather_in_float8, plan_regions
from sft_cli.worker.resume import totals, trusted_progress


@dataclass(frozen=True)
class Data:
    """What one rank trains and is evaluated on."""

    steps: Steps
    eval_rows: TokenizedRows | None
    report: DataReport | None
    """What became of all rows; None of a stream."""


@dataclass(frozen=True)
class Ready:
    """What a rank trains with."""

    data: Data
    source: SafetensorsFolder | None
    """The weights that it started from."""
    train_step: TrainStep
    learning_rate: Callable[[int], float]
    meter: Meter
    progress: Progress | None
    """Of the checkpoint that it goes on from."""
    start_up: StartUp
    kernels: Found
    """The kernels that really run."""
    inner: InnerBackends
    regions: dict[str, Any]
    """What kernels.json says of float8 and compiled code."""
    exactness: Exactness


def read_data(plan: Plan, rank: int, reader: Reader | None, start: DataPosition) -> Data:
    """
    Args:
        reader: of a stream.
        start: what a resumed run has taken; a stream knows by the step.
    """
    if reader is not None:
        return Data(StreamLoader(reader, plan), prepare_evaluation(plan), None)
    rows = prepare(plan, progress=False)
    return Data(Loader(rows.train, plan, rank, start), rows.eval, rows.report)


def get_ready(
    plan: Plan,
    session: RankSession,
    mesh: DeviceMesh,
    device: torch.device,
    reader: Reader | None,
    resume: Resume | None,
    open_view: Callable[[int], TerminalView],
) -> tuple[Ready, TerminalView]:
    """The model with its weights, kernels and optimizer; every rank must take part.

    Args:
        open_view: given the number of steps; opened before anything that takes long.

    Raises:
        KernelError: the kernels are not those of the plan, or samples are not kept apart.
        CheckpointError: what it should go on from can't be.
    """
    recipe = plan.recipe
    start_up = StartUp(session.began)
    start_up.lap(IMPORTS)
    progress = None if resume is None else trusted_progress(resume.checkpoint)
    source = open_source(plan)
    data = read_data(plan, session.ranks.rank, reader, data_position(progress))
    view = open_view(data.steps.total_steps)

    def learning_rate(step: int) -> float:
        return recipe.optimizer.learning_rate * learning_rate_ratio(recipe.schedule, step, data.steps.total_steps)

    start_up.lap(DATA)
    inner = InnerBackends.listening()
    with (
        _memory_for_moments(plan, device) as waiting_in,  # and now that nothing more is forked
        compiling_ahead(plan, device, lambda: bool(session.stop.requested)) as wait_for_kernels,
    ):
        if recipe.kernels.compile:  # by compilers that time what they make on the same GPU
            wait_for_kernels(view.say)
            start_up.lap(KERNELS)
        regions = plan_regions(plan, device, view.say)
        start_up.lap(REGIONS)
        model, reduction = assemble_model(
            plan, mesh, device, source, view.say, regions=regions, is_resumed=resume is not None
        )
        start_up.lap(MODEL)
        optimizer = build_adamw(
            model.parameters(),
            recipe.optimizer,
            seed=recipe.train.seed,
            waiting_in=waiting_in,
            layers=[block.parameters() for block in model.blocks],
        )
        if resume is not None:
            restore_state(resume.checkpoint, model, optimizer)
        start_up.lap(OPTIMIZER)
        wait_for_kernels(view.say)
        start_up.lap(KERNELS)
    rescale = gather_in_float8(plan, kernel_layers(model), regions, mesh)
    in_backward = InBackward(optimizer, reduction.whole()) if recipe.optimizer.in_backward else None
    max_norm = recipe.train.max_grad_norm
    train_step = TrainStep(
        model, optimizer, learning_rate, max_norm, device, reduction, in_backward, after_update=rescale
    )
    meter = assemble_meter(plan, device, totals(progress))
    if device.type == "cuda" or recipe.kernels.compile:
        view.say("warming up: a step that changes nothing, of the largest micro-batch; tunes kernels new to it")
        warm_up(data.steps.heaviest_micro_batch(), train_step)
    start_up.lap(WARM_UP)
    kernels, warning = pass_kernels_check(plan, model, inner.taken)
    if warning is not None:
        view.say(warning)
    exactness = pass_exactness_gate(plan, model, regions, device)
    view.say(exactness.line())
    described = describe_regions(plan, kernel_layers(model), regions)
    start_up.lap(CHECKS)
    view.say(start_up.line())
    ready = Ready(
        data, source, train_step, learning_rate, meter, progress, start_up, kernels, inner, described, exactness
    )
    return ready, view


def _memory_for_moments(plan: Plan, device: torch.device) -> AbstractContextManager[HostMemory | None]:
    """Begun before anything else that takes long, so that it is there when the optimizer is; None: nothing waits."""
    if not plan.recipe.optimizer.offload:
        return nullcontext()
    spare = 1.001  # ranks don't hold exactly the same number of rows
    return closing(HostMemory(device, int(spare * plan.host_memory_gib * GIB)))
