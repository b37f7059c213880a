"""One rank's work from the plan to the export: where all rooms meet."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.checkpoint.state import seed_generators, training_generators
from sft_cli.data.stream.reader import Reader, open_reader
from sft_cli.launch.rank_session import RankSession
from sft_cli.launch.resume import Resume
from sft_cli.launch.run_folder import RunFolder
from sft_cli.parallel.device import local_device
from sft_cli.parallel.mesh import process_group
from sft_cli.parallel.patience import LONG_SECONDS, set_patience
from sft_cli.plan.plan import Plan
from sft_cli.telemetry.terminal import TerminalView, open_view
from sft_cli.train.dry_run import dry_run
from sft_cli.train.garbage import held_still
from sft_cli.train.loop import fit
from sft_cli.train.report import Report
from sft_cli.worker.assemble import (
    assemble_run,
    assemble_saver,
    write_exactness_json,
    write_kernels_json,
)
from sft_cli.worker.bench import bench_run
from sft_cli.worker.export import export_model
from sft_cli.worker.gauges import assemble_gauges, assemble_sinks
from sft_cli.worker.out_of_memory import explain, is_out_of_memory
from sft_cli.worker.profile import profile_run
from sft_cli.worker.ready import Ready, get_ready
from sft_cli.worker.resume import best, replay_logged, take_up


def run(plan_path: Path, session: RankSession, *, resume: Resume | None = None, is_dry_run: bool) -> int:
    """Trains what the plan says; returns the signal that ended it early, 0 when it ran to its end.

    Args:
        resume: what it goes on from; None starts at step 0.

    Raises:
        OutOfMemoryError: the GPU's memory did not suffice.
    """
    plan = Plan.read(plan_path)
    with ExitStack() as stack:
        # A fork of this process, so before a GPU and threads are in it.
        reader = stack.enter_context(open_reader(plan, session.ranks.rank)) if plan.recipe.data.streaming else None
        return _run(plan, session, reader, resume, is_dry_run=is_dry_run)


def _run(plan: Plan, session: RankSession, reader: Reader | None, resume: Resume | None, *, is_dry_run: bool) -> int:
    device = local_device(plan.world.device)
    try:
        with process_group(device, replicas=plan.recipe.sharding.replicas) as mesh:
            return _train(plan, session, mesh, device, reader, resume, is_dry_run=is_dry_run)
    except RuntimeError as error:
        if device.type == "cpu" or not is_out_of_memory(error):
            raise
        raise explain(error, plan) from error


def _train(
    plan: Plan,
    session: RankSession,
    mesh: DeviceMesh,
    device: torch.device,
    reader: Reader | None,
    resume: Resume | None,
    *,
    is_dry_run: bool,
) -> int:
    folder = RunFolder(Path(plan.recipe.output_dir))
    with ExitStack() as stack:

        def open_session_view(total_steps: int) -> TerminalView:
            return stack.enter_context(open_view(session.terminal, total_steps, session.events.said))

        ready, view = get_ready(plan, session, mesh, device, reader, resume, open_session_view)
        stack.enter_context(held_still())
        steps, train_step = ready.data.steps, ready.train_step
        if plan.benching is not None:
            report = Report(ready.meter, (), view, ready.learning_rate)
            return bench_run(plan, steps, train_step, report, session, ready.start_up)
        if plan.profiling is not None:
            report = Report(ready.meter, (), view, ready.learning_rate)
            return profile_run(plan, folder, steps, train_step, report, session)
        if is_dry_run:
            dry_run(steps.heaviest_step(), train_step, view.say, ready.meter.peak_memory_gib)
            return 0
        return _fit(plan, session, mesh, folder, ready, view, resume, stack)


def _fit(
    plan: Plan,
    session: RankSession,
    mesh: DeviceMesh,
    folder: RunFolder,
    ready: Ready,
    view: TerminalView,
    resume: Resume | None,
    stack: ExitStack,
) -> int:
    """From the first step to the export.

    Args:
        stack: holds what has to be left when the run is over.
    """
    recipe, ranks = plan.recipe, session.ranks
    train_step, progress = ready.train_step, ready.progress
    steps, model = ready.data.steps, train_step.model
    gauges = stack.enter_context(assemble_gauges(plan, train_step, model.blocks, view.say, ranks))
    sinks = assemble_sinks(plan, folder, view.say, ranks, progress)
    report = Report(ready.meter, sinks, view, ready.learning_rate, gauges)
    if resume is not None and progress is not None:
        replay_logged(resume, progress, plan, steps, train_step, report)
    # After all that has drawn from them.
    seed_generators(training_generators(train_step.device), recipe.train.seed)
    if resume is not None and progress is not None:
        take_up(resume, progress, folder, train_step, report)
    if ranks.rank == 0:
        write_kernels_json(folder.kernels_json, plan, ready.kernels, ready.inner.taken, ready.regions)
        write_exactness_json(folder.exactness_json, ready.exactness)
        if ready.data.report is not None:
            ready.data.report.write(folder.data_json)
        at, checkpoint = (0, None) if progress is None else (progress.step, resume and str(resume.checkpoint))
        session.events.note("started", step=at, resumed_from=checkpoint)
    for sink in sinks:
        stack.enter_context(sink)
    saver = stack.enter_context(assemble_saver(plan, folder, train_step, report, ranks))
    seen = best(progress, recipe.evaluate.patience)

    def be_patient(seconds: float) -> None:
        set_patience(mesh, seconds)

    stopped_by = fit(
        assemble_run(plan, steps, train_step, report, ready.data.eval_rows, session, saver, seen, be_patient, progress)
    )
    for remark in steps.remarks(is_over=not stopped_by):
        report.say(remark)
    if stopped_by:
        return stopped_by
    be_patient(LONG_SECONDS)
    if recipe.checkpoint.enabled and recipe.checkpoint.export:
        report.say(f"exporting to {folder.export}")
        export_model(folder.export, model, plan, ready.source)
    report.done()
    return 0
