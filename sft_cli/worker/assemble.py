"""A model ready for its first step, put together from the rooms that know one thing each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.checkpoint.commit import Target
from sft_cli.checkpoint.progress import Progress
from sft_cli.checkpoint.saver import CheckpointSaver
from sft_cli.checkpoint.state import training_generators
from sft_cli.data.loader import StepBatches, Steps, evaluation_batches
from sft_cli.data.prefetch import prefetched
from sft_cli.data.rows import TokenizedRows
from sft_cli.kernels.install import Layers, install, layers_of
from sft_cli.kernels.loss import LOSS
from sft_cli.kernels.manifest import Found, cost, describe_kernels, differences, find_kernels, refusal
from sft_cli.kernels.regions import Regions
from sft_cli.launch.rank_session import RankSession
from sft_cli.launch.ranks import Ranks
from sft_cli.launch.run_folder import RunFolder
from sft_cli.model.build import build
from sft_cli.model.language_model import LanguageModel
from sft_cli.model.safetensors_folder import SafetensorsFolder
from sft_cli.model.weights import materialise
from sft_cli.parallel.activation_checkpointing import own_forward
from sft_cli.parallel.apply import parallelise
from sft_cli.parallel.device import peak_memory_reader, wait_for
from sft_cli.parallel.kept_calls import kept
from sft_cli.parallel.patience import impatient
from sft_cli.parallel.reduction import GradientReduction
from sft_cli.plan.flops import TokenWork
from sft_cli.plan.gpus import peak_bf16_tflops
from sft_cli.plan.plan import Plan
from sft_cli.telemetry.meter import Meter, Totals
from sft_cli.train.best import Best
from sft_cli.train.evaluate import evaluate
from sft_cli.train.exactness import check_exactness
from sft_cli.train.exactness_report import Exactness
from sft_cli.train.loop import Run, Saves
from sft_cli.train.report import Report
from sft_cli.train.step import TrainStep
from sft_cli.worker.regions import compile_regions
from sft_cli.worker.resume import rows_of_all_ranks
from sft_cli.worker.weights import fill


def assemble_model(
    plan: Plan,
    mesh: DeviceMesh,
    device: torch.device,
    source: SafetensorsFolder | None,
    say: Callable[[str], None],
    *,
    regions: Regions | None = None,
    is_resumed: bool = False,
) -> tuple[LanguageModel, GradientReduction]:
    """Meta, kernels, checkpointing, sharding, storage, weights; and how its gradients come together.

    Args:
        source: the weights to start from; None draws them from `train.seed`.
        say: told what filling it took.
        regions: what is compiled or multiplied in float8; None: nothing is.
        is_resumed: leaves the weights undefined, for a checkpoint to be loaded into.
    """
    recipe, kernels = plan.recipe, plan.recipe.kernels
    code_folder = plan.model.code_path
    model = build(
        plan.model.config,
        family=plan.model.family,
        dtype=getattr(torch, recipe.model.master_dtype),
        loss=LOSS[kernels.loss](),
        code_folder=code_folder,
    )
    regions = Regions() if regions is None else regions
    install(kernel_layers(model), kernels, expensive=kept, regions=regions)
    compile_regions(plan, regions, device, say)
    reduction = parallelise(
        model,
        recipe.sharding,
        blocks=model.blocks,
        embedding=model.embedding,
        head=model.head,
        tied=model.tied,
        float32=model.float32_parameters,
        mesh=mesh,
        compute_dtype=getattr(torch, recipe.model.dtype),
        updates_in_backward=recipe.optimizer.in_backward,
    )
    shards_on = torch.device("cpu") if recipe.sharding.cpu_offload else device
    if is_resumed:
        materialise(model, plan.model.config, device, shards_on=shards_on, code_folder=code_folder)
    else:
        fill(model, plan, device, source, say, shards_on=shards_on)
    return model, reduction


def kernel_layers(model: LanguageModel) -> Layers:
    """The modules that kernels are put on, and read off from."""
    return layers_of(
        # Not the head's norm: it has as many rows as the loss counts, another number in each batch, and Triton compiles
        # anew for a number that 16 divides.
        model.decoder,
        model.config,
        delta_net=model.delta_net_blocks,
        project=model.delta_net and model.delta_net.project,
        norm_offset=model.family.norm_offset,
        one_input=model.family.one_input,
        plain=model.blocks if model.family.is_plain else [],
        windows=_windows(model) if model.family.is_plain else [],
        # What a model that nobody knows has for a decoder layer, nobody knows.
        blocks=model.blocks if model.family.norm_offset is not None else [],
        forward_of=own_forward,
    )


def _windows(model: LanguageModel) -> list[int | None]:
    """Of each layer's softmax attention. Not looked for where none is expected: a name that transformers changes has to
    raise, or windows would be lost without a word."""
    if model.family.window_of == "config":
        return [model.config.sliding_window] * len(model.blocks)
    if model.family.window_of == "layer":
        return [block.self_attn.sliding_window for block in model.blocks]
    return [None] * len(model.blocks)


def assemble_meter(plan: Plan, device: torch.device, before: Totals | None = None) -> Meter:
    """MFU is against the bfloat16 peak of all GPUs, so there is none for float32 and none for an unknown GPU."""
    peak_tflops = peak_bf16_tflops(plan.world.gpu_name) if plan.world.gpu_name is not None else None
    is_bf16 = device.type == "cuda" and plan.recipe.model.dtype == "bfloat16"
    return Meter(
        flops_per_token=TokenWork(plan.model.architecture()),
        peak_flops_per_second=peak_tflops * 1e12 * plan.world.ranks if is_bf16 and peak_tflops else None,
        peak_memory_gib=peak_memory_reader(device),
        before=before,
    )


def assemble_saver(
    plan: Plan, folder: RunFolder, train_step: TrainStep, report: Report, ranks: Ranks
) -> CheckpointSaver:
    saver = CheckpointSaver(
        Target(folder.checkpoints, plan.recipe.checkpoint.keep, (folder.exactness_json, folder.plan_json)),
        train_step.model,
        train_step.optimizer,
        training_generators(train_step.device),
        train_step.device,
        lambda path: report.say(f"saved {path}"),
        say=report.say,
        ranks_here=ranks.local_world_size,
    )
    train_step.before_update = saver.hold_updates
    return saver


def assemble_run(
    plan: Plan,
    loader: Steps,
    train_step: TrainStep,
    report: Report,
    eval_rows: TokenizedRows | None,
    session: RankSession,
    saver: CheckpointSaver,
    best: Best,
    set_patience: Callable[[float], None],
    progress: Progress | None,
) -> Run:
    """The loop's callables: what evaluating and saving mean in this run.

    Args:
        set_patience: how many seconds a rank waits for another from now on.
        progress: of what the run goes on from.
    """
    recipe, rank = plan.recipe, session.ranks.rank
    resumed_at = 0 if progress is None else progress.step

    def evaluate_rows() -> tuple[float, int]:
        assert eval_rows is not None
        return evaluate(train_step.model, prefetched(evaluation_batches(eval_rows, plan, rank)), train_step.device)

    def save(batches: StepBatches, owes_evaluation: bool) -> None:
        at = batches.position
        saver.save(
            Progress(
                step=batches.step,
                epoch=batches.epoch,
                ranks=plan.world.ranks,
                data_epoch=None if at is None else at.epoch,
                micro_batches=None if at is None else at.micro_batches,
                counters=asdict(report.meter.totals()),
                train_loss=report.train_loss,
                eval_loss=report.eval_loss,
                best_loss=best.loss,
                best_step=best.step if recipe.evaluate.keep_best else None,
                evaluations_since_best=best.evaluations_since,
                owes_evaluation=owes_evaluation,
            )
        )

    return Run(
        steps=impatient(prefetched(loader.steps(resumed_at)), set_patience, lambda: wait_for(train_step.device)),
        train_step=train_step,
        report=report,
        stop_signal=lambda: session.stop.requested,
        evaluate=None if eval_rows is None else evaluate_rows,
        saves=Saves(save, saver.mark_best, saver.check, saver.finish) if recipe.checkpoint.enabled else None,
        rows_of_all_ranks=rows_of_all_ranks,
        evaluate_at_start=recipe.evaluate.at_start and not resumed_at,
        evaluate_every_steps=recipe.evaluate.every_steps,
        save_every_steps=recipe.checkpoint.every_steps,
        log_every_steps=recipe.telemetry.log_every_steps,
        best=best,
        keep_best=recipe.evaluate.keep_best,
        owed_evaluation=progress.step if progress is not None and progress.owes_evaluation else None,
        updates_in_backward=recipe.optimizer.in_backward,
    )


def pass_exactness_gate(plan: Plan, model: LanguageModel, regions: Regions, device: torch.device) -> Exactness:
    """Proof that this run's samples don't leak into each other; every rank must take part.

    What is compiled or in float8 works token by token, and can't leak. It is left out: with one float8 scale a tensor
    every token's rounding depends on the largest value of all of them, which is no leak, and would hide one.

    Raises:
        KernelError: they do, and `kernels.strict` is on.
    """
    recipe = plan.recipe
    with regions.plainly():
        return check_exactness(
            model,
            batching=recipe.batching.mode,
            compute_dtype=getattr(torch, recipe.model.dtype),
            device=device,
            strict=recipe.kernels.strict,
        )


def write_exactness_json(path: Path, exactness: Exactness) -> None:
    path.write_text(json.dumps(exactness.as_json(), indent=2) + "\n", encoding="utf-8")


def pass_kernels_check(plan: Plan, model: LanguageModel, inner: Mapping[str, str]) -> tuple[Found, str | None]:
    """The kernels that really run, asked of the live model; and what is to be said of them, if anything.

    Args:
        inner: see `describe_kernels`.

    Raises:
        KernelError: they are not those of the plan, and `kernels.strict` is on.
    """
    found = find_kernels(kernel_layers(model), model.head.loss)
    told = differences(found, {slot: getattr(plan.recipe.kernels, slot) for slot in found}, inner)
    if told and plan.recipe.kernels.strict:
        raise refusal(told)
    return found, f"WARNING: not the kernels of the plan, expect {cost(told)}. {'; '.join(told)}" if told else None


def write_kernels_json(
    path: Path, plan: Plan, found: Found, inner: Mapping[str, str], regions: Mapping[str, Any]
) -> None:
    """Which function runs in each slot.

    Args:
        regions: from `describe_regions`.
    """
    got = {slot: getattr(plan.recipe.kernels, slot) for slot in found}
    was_auto = {choice.key.removeprefix("kernels.") for choice in plan.choices if choice.key.startswith("kernels.")}
    asked = {slot: "auto" if slot in was_auto else got[slot] for slot in found}
    described = describe_kernels(found, asked, got, inner) | regions
    path.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
