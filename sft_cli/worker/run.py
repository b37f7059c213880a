"""One rank's work from the plan to the export: where all rooms meet."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.loader import Loader
from sft_cli.data.prepare import prepare
from sft_cli.kernels.fla import InnerBackends
from sft_cli.launch.rank_session import RankSession
from sft_cli.launch.run_folder import RunFolder
from sft_cli.model.export import export
from sft_cli.model.safetensors_folder import SafetensorsFolder
from sft_cli.optim.adamw import build_adamw
from sft_cli.optim.in_backward import InBackward
from sft_cli.optim.schedule import learning_rate_ratio
from sft_cli.parallel.device import device_uuid, local_device
from sft_cli.parallel.mesh import process_group
from sft_cli.plan.plan import Plan
from sft_cli.telemetry.gpu import gpu_sampler
from sft_cli.telemetry.metrics_file import MetricsFile
from sft_cli.telemetry.terminal import open_view
from sft_cli.train.dry_run import dry_run
from sft_cli.train.loop import fit
from sft_cli.train.report import Report
from sft_cli.train.step import TrainStep
from sft_cli.train.warm_up import warm_up
from sft_cli.worker.assemble import (
    assemble_meter,
    assemble_model,
    assemble_run,
    pass_exactness_gate,
    pass_kernels_check,
    write_exactness_json,
    write_kernels_json,
)
from sft_cli.worker.out_of_memory import explain, is_out_of_memory
from sft_cli.worker.prewarm import prewarm_kernels


def run(plan_path: Path, session: RankSession, *, is_dry_run: bool) -> int:
    """Trains what the plan says; returns the signal that ended it early, 0 when it ran to its end.

    Raises:
        OutOfMemoryError: the GPU's memory did not suffice.
    """
    plan = Plan.read(plan_path)
    device = local_device(plan.world.device)
    try:
        with process_group(device, replicas=plan.recipe.sharding.replicas) as mesh:
            return _train(plan, session, mesh, device, is_dry_run=is_dry_run)
    except RuntimeError as error:
        if device.type == "cpu" or not is_out_of_memory(error):
            raise
        raise explain(error, plan) from error


def _train(plan: Plan, session: RankSession, mesh: DeviceMesh, device: torch.device, *, is_dry_run: bool) -> int:
    recipe, is_first = plan.recipe, session.ranks.rank == 0
    folder = RunFolder(Path(recipe.output_dir))
    rows = prepare(plan, progress=False)
    source = _source(plan)
    loader = Loader(rows.train, plan, session.ranks.rank)

    def learning_rate(step: int) -> float:
        return recipe.optimizer.learning_rate * learning_rate_ratio(recipe.schedule, step, loader.total_steps)

    with ExitStack() as stack:
        view = stack.enter_context(open_view(session.terminal, loader.total_steps))
        inner = InnerBackends.listening()
        prewarm_kernels(plan, device, view.say, lambda: bool(session.stop.requested))
        model, reduction = assemble_model(plan, mesh, device, source)
        optimizer = build_adamw(model.parameters(), recipe.optimizer, seed=recipe.train.seed)
        in_backward = InBackward(optimizer, reduction.whole()) if recipe.optimizer.in_backward else None
        train_step = TrainStep(
            model, optimizer, learning_rate, recipe.train.max_grad_norm, device, reduction, in_backward
        )
        meter = assemble_meter(plan, device)
        if device.type == "cuda":
            view.say("warming up: a step that changes nothing, of the largest micro-batch; tunes kernels new to it")
            view.say(f"warmed up in {warm_up(loader.heaviest_micro_batch(), train_step):.0f} s")
        kernels, warning = pass_kernels_check(plan, model, inner.taken)
        if warning is not None:
            view.say(warning)
        exactness = pass_exactness_gate(plan, model, device)
        view.say(exactness.line())
        if is_dry_run:
            dry_run(loader.heaviest_step(), train_step, view.say, meter.peak_memory_gib)
            return 0
        metrics = stack.enter_context(MetricsFile(folder.metrics_jsonl)) if is_first else None
        read_gpu = stack.enter_context(gpu_sampler(device_uuid(device)))
        if is_first:
            write_kernels_json(folder.kernels_json, plan, kernels, inner.taken)
            write_exactness_json(folder.exactness_json, exactness)
        report = Report(meter, metrics, view, learning_rate, read_gpu)
        stopped_by = fit(assemble_run(plan, folder, loader, train_step, report, rows.eval, session))
        if stopped_by:
            return stopped_by
        if recipe.checkpoint.enabled and recipe.checkpoint.export:
            report.say(f"exporting to {folder.export}")
            export(
                folder.export,
                model,
                plan.model.config,
                source=source,
                tokenizer_folder=Path(plan.tokenizer_folder),
                code_folder=None if plan.model.code_folder is None else Path(plan.model.code_folder),
                chat_template=_chat_template(plan),
            )
        report.done()
    return 0


def _source(plan: Plan) -> SafetensorsFolder | None:
    """Where the weights come from; None where they are drawn."""
    if plan.model.weights == "random":
        return None
    assert plan.model.folder is not None, "the launcher downloads a model before it starts workers"
    return SafetensorsFolder(Path(plan.model.folder))


def _chat_template(plan: Plan) -> str | None:
    path = plan.recipe.model.chat_template
    return None if path is None else Path(path).read_text(encoding="utf-8")
