"""One rank's work from the plan to the export: where all rooms meet."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.checkpoint.state import restore_state, seed_generators, training_generators
from sft_cli.data.loader import Loader, Steps
from sft_cli.data.order import DataPosition
from sft_cli.data.prepare import prepare, prepare_evaluation
from sft_cli.data.report import DataReport
from sft_cli.data.rows import TokenizedRows
from sft_cli.data.stream.loader import StreamLoader
from sft_cli.data.stream.reader import Reader, open_reader
from sft_cli.kernels.fla import InnerBackends
from sft_cli.launch.rank_session import RankSession
from sft_cli.launch.resume import Resume
from sft_cli.launch.run_folder import RunFolder
from sft_cli.optim.adamw import build_adamw
from sft_cli.optim.in_backward import InBackward
from sft_cli.optim.schedule import learning_rate_ratio
from sft_cli.parallel.device import local_device
from sft_cli.parallel.mesh import process_group
from sft_cli.parallel.patience import LONG_SECONDS, set_patience
from sft_cli.plan.plan import Plan
from sft_cli.telemetry.terminal import open_view
from sft_cli.train.dry_run import dry_run
from sft_cli.train.loop import fit
from sft_cli.train.position import data_position
from sft_cli.train.report import Report
from sft_cli.train.step import TrainStep
from sft_cli.train.warm_up import warm_up
from sft_cli.worker.assemble import (
    assemble_meter,
    assemble_model,
    assemble_run,
    assemble_saver,
    kernel_layers,
    pass_exactness_gate,
    pass_kernels_check,
    write_exactness_json,
    write_kernels_json,
)
from sft_cli.worker.bench import WarmUp, bench_run
from sft_cli.worker.export import export_model, open_source
from sft_cli.worker.gauges import assemble_gauges, assemble_sinks
from sft_cli.worker.out_of_memory import explain, is_out_of_memory
from sft_cli.worker.prewarm import prewarm_kernels
from sft_cli.worker.profile import profile_run
from sft_cli.worker.regions import describe_regions, gather_in_float8, plan_regions
from sft_cli.worker.resume import best, replay_logged, take_up, totals, trusted_progress


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
    recipe, is_first = plan.recipe, session.ranks.rank == 0
    folder = RunFolder(Path(recipe.output_dir))
    progress = None if resume is None else trusted_progress(resume.checkpoint)
    source = open_source(plan)
    loader, eval_rows, data_report = _data(plan, session.ranks.rank, reader, data_position(progress))

    def learning_rate(step: int) -> float:
        return recipe.optimizer.learning_rate * learning_rate_ratio(recipe.schedule, step, loader.total_steps)

    with ExitStack() as stack:
        view = stack.enter_context(open_view(session.terminal, loader.total_steps, session.events.said))
        inner = InnerBackends.listening()
        began = time.perf_counter()
        prewarm_kernels(plan, device, view.say, lambda: bool(session.stop.requested))
        compiling, first_use = time.perf_counter() - began, 0.0
        regions = plan_regions(plan, device, view.say)
        model, reduction = assemble_model(
            plan, mesh, device, source, view.say, regions=regions, is_resumed=resume is not None
        )
        optimizer = build_adamw(model.parameters(), recipe.optimizer, seed=recipe.train.seed)
        if resume is not None:
            restore_state(resume.checkpoint, model, optimizer)
        rescale = gather_in_float8(plan, kernel_layers(model), regions, mesh)
        in_backward = InBackward(optimizer, reduction.whole()) if recipe.optimizer.in_backward else None
        train_step = TrainStep(
            model, optimizer, learning_rate, recipe.train.max_grad_norm, device, reduction, in_backward, rescale
        )
        meter = assemble_meter(plan, device, totals(progress))
        if device.type == "cuda" or recipe.kernels.compile:
            view.say("warming up: a step that changes nothing, of the largest micro-batch; tunes kernels new to it")
            first_use = warm_up(loader.heaviest_micro_batch(), train_step)
            view.say(f"warmed up in {first_use:.0f} s")
        kernels, warning = pass_kernels_check(plan, model, inner.taken)
        if warning is not None:
            view.say(warning)
        exactness = pass_exactness_gate(plan, model, regions, device)
        view.say(exactness.line())
        if plan.profiling is not None or plan.benching is not None:
            report = Report(meter, (), view, learning_rate)
            if plan.benching is not None:
                return bench_run(plan, loader, train_step, report, session, WarmUp(compiling, first_use))
            return profile_run(plan, folder, loader, train_step, report, session)
        if is_dry_run:
            dry_run(loader.heaviest_step(), train_step, view.say, meter.peak_memory_gib)
            return 0
        gauges = stack.enter_context(assemble_gauges(plan, train_step, model.blocks, view.say, session.ranks))
        sinks = assemble_sinks(plan, folder, view.say, session.ranks, progress)
        report = Report(meter, sinks, view, learning_rate, gauges)
        if resume is not None and progress is not None:
            replay_logged(resume, progress, plan, loader, train_step, report)
        # After all that has drawn from them.
        seed_generators(training_generators(device), recipe.train.seed)
        if resume is not None and progress is not None:
            take_up(resume, progress, folder, train_step, report)
        if is_first:
            described = describe_regions(plan, kernel_layers(model), regions)
            write_kernels_json(folder.kernels_json, plan, kernels, inner.taken, described)
            write_exactness_json(folder.exactness_json, exactness)
            if data_report is not None:
                data_report.write(folder.data_json)
            at, checkpoint = (0, None) if progress is None else (progress.step, resume and str(resume.checkpoint))
            session.events.note("started", step=at, resumed_from=checkpoint)
        for sink in sinks:
            stack.enter_context(sink)
        saver = stack.enter_context(assemble_saver(plan, folder, train_step, report, session.ranks))
        seen = best(progress, recipe.evaluate.patience)
        resumed_at = 0 if progress is None else progress.step

        def be_patient(seconds: float) -> None:
            set_patience(mesh, seconds)

        stopped_by = fit(
            assemble_run(plan, loader, train_step, report, eval_rows, session, saver, seen, be_patient, resumed_at)
        )
        for remark in loader.remarks(is_over=not stopped_by):
            report.say(remark)
        if stopped_by:
            return stopped_by
        be_patient(LONG_SECONDS)
        if recipe.checkpoint.enabled and recipe.checkpoint.export:
            report.say(f"exporting to {folder.export}")
            export_model(folder.export, model, plan, source)
        report.done()
    return 0


def _data(
    plan: Plan, rank: int, reader: Reader | None, start: DataPosition
) -> tuple[Steps, TokenizedRows | None, DataReport | None]:
    """The steps of this rank, the rows to evaluate on, and what became of all rows; None for a stream's.

    Args:
        reader: of a stream.
        start: what a resumed run has taken; a stream knows by the step.
    """
    if reader is not None:
        return StreamLoader(reader, plan), prepare_evaluation(plan), None
    rows = prepare(plan, progress=False)
    return Loader(rows.train, plan, rank, start), rows.eval, rows.report
