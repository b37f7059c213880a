"""`sftune profile` on one rank: the model that would train, some steps of it, and rank 0's conclusions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from sft_cli.data.loader import Steps
from sft_cli.kernels.marks import mark_slots
from sft_cli.launch.rank_session import RankSession
from sft_cli.launch.run_folder import RunFolder
from sft_cli.parallel.device import gemm_tflops
from sft_cli.plan.plan import Plan
from sft_cli.plan.profiling import UNPROFILED_STEPS, WARM_UP_STEPS, Profiling
from sft_cli.telemetry.profile.conclude import TRACE, conclude
from sft_cli.telemetry.profile.facts import Facts
from sft_cli.telemetry.profile.trace_file import write_compact
from sft_cli.train.profiled_steps import profiled_steps
from sft_cli.train.report import Report
from sft_cli.train.step import TrainStep
from sft_cli.worker.assemble import kernel_layers
from sft_cli.worker.profiler import tracing

SNAPSHOT = "memory.pickle"


def profile_run(
    plan: Plan, folder: RunFolder, loader: Steps, train_step: TrainStep, report: Report, session: RankSession
) -> int:
    """Profiles the first steps of a run and writes the folder `profile`; every rank must take part.

    Returns:
        The signal that ended it early, in which case nothing is written; 0 when it ran to its end.
    """
    profiling = plan.profiling
    assert profiling is not None, "asked for by the plan"
    device, is_first = train_step.device, session.ranks.rank == 0
    model = train_step.model
    mark_slots(kernel_layers(model), model.head)
    report.say(_announcement(profiling, device))
    ceiling = gemm_tflops(device, getattr(torch, plan.recipe.model.dtype)) if is_first else None
    with tempfile.TemporaryDirectory(prefix="sftune-profile-") as scratch:
        exported = Path(scratch, "trace.json")
        profiler = _profiler(profiling, device, exported if is_first else None, scratch)
        comes_again = not plan.recipe.data.streaming
        taken = profiled_steps(
            profiling, loader.steps, comes_again, train_step, report, lambda: session.stop.requested, profiler
        )
        if taken.stopped_by or not is_first:
            return taken.stopped_by
        if not taken.was_finite:
            report.say("WARNING: the loss or a gradient was not finite; what a step takes is the same all the same")
        report.say("reading the trace")
        folder.profile.mkdir(parents=True, exist_ok=True)
        share = write_compact(exported, folder.profile / TRACE)
        snapshot = Path(scratch, SNAPSHOT)
        if snapshot.exists():
            (folder.profile / SNAPSHOT).write_bytes(snapshot.read_bytes())
        window, count = taken.window, taken.window.steps
        facts = Facts(
            tokens=window.tokens / count,
            slots=window.slots / count,
            supervised_tokens=window.supervised_tokens / count,
            unprofiled_step_seconds=taken.unprofiled_step_seconds,
            model_flops_utilization=window.mfu,
            peak_memory_gib=window.peak_memory_gib,
            gemm_tflops=ceiling,
            traced_share=share,
            memory_snapshot=SNAPSHOT if snapshot.exists() else None,
        )
        whole = folder.profile / TRACE if share == 1 else exported
        conclude(folder.profile, whole, plan, facts, session.terminal)
    return 0


def _announcement(profiling: Profiling, device: torch.device) -> str:
    line = (
        f"profiling steps {profiling.first_step} to {profiling.all_steps}; nothing that they train is kept, "
        "and no checkpoint is written"
    )
    if profiling.memory and device.type == "cpu":
        line += "; a CPU has no memory snapshot, so memory is a curve in report.html alone"
    return line


@contextmanager
def _profiler(
    profiling: Profiling, device: torch.device, exported: Path | None, scratch: str
) -> Iterator[Callable[[], None]]:
    """Gives a function to call at the end of each step; ranks without `exported` only run along."""
    has_snapshot, steps = profiling.memory and device.type == "cuda" and exported is not None, 0
    with tracing(
        device,
        exported,
        wait=UNPROFILED_STEPS,
        warm_up=WARM_UP_STEPS,
        active=profiling.steps,
        memory=profiling.memory,
    ) as end_traced_step:

        def end_step() -> None:
            nonlocal steps
            end_traced_step()
            steps += 1
            if has_snapshot and steps == UNPROFILED_STEPS:  # not before, or those would not be unprofiled
                torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")

        yield end_step
        if has_snapshot:
            torch.cuda.memory._dump_snapshot(str(Path(scratch, SNAPSHOT)))
            torch.cuda.memory._record_memory_history(enabled=None)
