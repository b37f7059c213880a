"""A model ready for its first step, put together from the rooms that know one thing each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.checkpoint.save import Progress, save_checkpoint
from sft_cli.data.loader import StepBatches, Steps, evaluation_batches
from sft_cli.data.prefetch import prefetched
from sft_cli.data.rows import TokenizedRows
from sft_cli.kernels.install import Layers, install, layers_of
from sft_cli.kernels.loss import LOSS
from sft_cli.kernels.manifest import Found, cost, describe_kernels, differences, find_kernels, refusal
from sft_cli.launch.rank_session import RankSession
from sft_cli.launch.run_folder import RunFolder
from sft_cli.model.build import build
from sft_cli.model.language_model import LanguageModel
from sft_cli.model.safetensors_folder import SafetensorsFolder
from sft_cli.parallel.apply import parallelise
from sft_cli.parallel.device import peak_memory_reader
from sft_cli.parallel.kept_calls import kept
from sft_cli.parallel.reduction import GradientReduction
from sft_cli.plan.gpus import peak_bf16_tflops
from sft_cli.plan.plan import Plan
from sft_cli.telemetry.meter import Meter
from sft_cli.train.evaluate import evaluate
from sft_cli.train.exactness import check_exactness
from sft_cli.train.exactness_report import Exactness
from sft_cli.train.loop import Run
from sft_cli.train.report import Report
from sft_cli.train.step import TrainStep
from sft_cli.worker.weights import fill


def assemble_model(
    plan: Plan, mesh: DeviceMesh, device: torch.device, source: SafetensorsFolder | None, say: Callable[[str], None]
) -> tuple[LanguageModel, GradientReduction]:
    """Meta, kernels, checkpointing, sharding, storage, weights; and how its gradients come together.

    Args:
        source: the weights to start from; None draws them from `train.seed`.
        say: told what filling it took.
    """
    recipe, kernels = plan.recipe, plan.recipe.kernels
    code_folder = None if plan.model.code_folder is None else Path(plan.model.code_folder)
    model = build(
        plan.model.config,
        family=plan.model.family,
        dtype=getattr(torch, recipe.model.master_dtype),
        loss=LOSS[kernels.loss](),
        code_folder=code_folder,
    )
    install(kernel_layers(model), kernels, expensive=kept)
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
    )
    shards_on = torch.device("cpu") if recipe.sharding.cpu_offload else device
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
    )


def assemble_meter(plan: Plan, device: torch.device) -> Meter:
    """MFU is against the bfloat16 peak of all GPUs, so there is none for float32 and none for an unknown GPU."""
    peak_tflops = peak_bf16_tflops(plan.world.gpu_name) if plan.world.gpu_name is not None else None
    is_bf16 = device.type == "cuda" and plan.recipe.model.dtype == "bfloat16"
    return Meter(
        flops_per_token=plan.flops_per_token,
        peak_flops_per_second=peak_tflops * 1e12 * plan.world.ranks if is_bf16 and peak_tflops else None,
        peak_memory_gib=peak_memory_reader(device),
    )


def assemble_run(
    plan: Plan,
    folder: RunFolder,
    loader: Steps,
    train_step: TrainStep,
    report: Report,
    eval_rows: TokenizedRows | None,
    session: RankSession,
) -> Run:
    """The loop's callables: what evaluating and saving mean in this run."""
    recipe, rank = plan.recipe, session.ranks.rank

    def evaluate_rows() -> tuple[float, int]:
        assert eval_rows is not None
        return evaluate(train_step.model, prefetched(evaluation_batches(eval_rows, plan, rank)), train_step.device)

    def save(batches: StepBatches) -> None:
        path = save_checkpoint(
            folder.checkpoints,
            train_step.model,
            train_step.optimizer,
            Progress(batches.step, batches.epoch),
            keep=recipe.checkpoint.keep,
            beside=[folder.exactness_json],
        )
        report.say(f"saved {path}")

    return Run(
        steps=prefetched(loader.steps()),
        train_step=train_step,
        report=report,
        stop_signal=lambda: session.stop.requested,
        evaluate=None if eval_rows is None else evaluate_rows,
        save=save if recipe.checkpoint.enabled else None,
        evaluate_at_start=recipe.evaluate.at_start,
        evaluate_every_steps=recipe.evaluate.every_steps,
        save_every_steps=recipe.checkpoint.every_steps,
        log_every_steps=recipe.telemetry.log_every_steps,
        updates_in_backward=recipe.optimizer.in_backward,
    )


def pass_exactness_gate(plan: Plan, model: LanguageModel, device: torch.device) -> Exactness:
    """Proof that this run's samples don't leak into each other; every rank must take part.

    Raises:
        KernelError: they do, and `kernels.strict` is on.
    """
    recipe = plan.recipe
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


def write_kernels_json(path: Path, plan: Plan, found: Found, inner: Mapping[str, str]) -> None:
    """Which function runs in each slot."""
    got = {slot: getattr(plan.recipe.kernels, slot) for slot in found}
    was_auto = {choice.key.removeprefix("kernels.") for choice in plan.choices if choice.key.startswith("kernels.")}
    asked = {slot: "auto" if slot in was_auto else got[slot] for slot in found}
    path.write_text(json.dumps(describe_kernels(found, asked, got, inner), indent=2) + "\n", encoding="utf-8")
