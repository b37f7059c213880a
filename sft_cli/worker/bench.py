"""`sftune bench` on one rank: the model that would train, some steps of it timed, one profiled, numbers in a file."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sft_cli.data.loader import StepBatches, Steps
from sft_cli.kernels.late import LateKernels
from sft_cli.kernels.marks import mark_slots
from sft_cli.launch.rank_session import RankSession
from sft_cli.parallel.device import allocator_retries, peak_reserved_gib
from sft_cli.plan.benching import PROFILED_STEPS, PROFILER_WARM_UP_STEPS, Benching
from sft_cli.plan.plan import Plan
from sft_cli.telemetry.profile.events import read_trace
from sft_cli.telemetry.profile.facts import Facts
from sft_cli.telemetry.profile.summary import Summary, locate, summarise
from sft_cli.telemetry.start_up import StartUp
from sft_cli.train.first_steps import first_steps, too_few
from sft_cli.train.moments import moments_of
from sft_cli.train.report import Report
from sft_cli.train.step import TrainStep
from sft_cli.train.step_meters import StepMeters
from sft_cli.train.timed_steps import Timed, timed_steps
from sft_cli.worker.assemble import kernel_layers
from sft_cli.worker.profiler import tracing


def bench_run(
    plan: Plan, loader: Steps, train_step: TrainStep, report: Report, session: RankSession, start_up: StartUp
) -> int:
    """Benches the first steps of a run; every rank must take part.

    Returns:
        The signal that ended it early, in which case nothing is written; 0 when it ran to its end.
    """
    benching = plan.benching
    assert benching is not None, "asked for by the plan"
    to_first_step = time.time() - benching.started_at
    comes_again, device = not plan.recipe.data.streaming, train_step.device
    retries_before = allocator_retries(device)
    steps = report.waiting(first_steps(loader.steps, benching.all_steps, come_again=comes_again))
    train_step.meters = StepMeters(moments_of(device))
    late = LateKernels()
    late.begin(device)
    timed = timed_steps(
        benching, steps, train_step, report, lambda: session.stop.requested, phases=train_step.meters.read
    )
    if timed.stopped_by:
        return timed.stopped_by
    # Before the profiler, which has its own.
    told = {
        "late_kernels": [asdict(one) for one in late.take()],
        "peak_memory_gib": report.meter.peak_memory_gib(),
        "peak_reserved_gib": peak_reserved_gib(device),
        "allocator_retries": None if retries_before is None else (allocator_retries(device) or 0) - retries_before,
    }
    with tempfile.TemporaryDirectory(prefix="sftune-bench-trace-") as scratch:
        trace = Path(scratch, "trace.json") if session.ranks.rank == 0 else None
        stopped_by = _profiled(benching, steps, train_step, report, session, trace)
        if stopped_by or trace is None:
            return stopped_by
        report.say("counting the launches of a profiled step")
        summary = _summary(trace, timed)
    result = {
        "warm_up_step_seconds": [window.step_seconds for window in timed.warm_up],
        "timed": [asdict(window) for window in timed.timed],
        "phases": [None if phases is None else asdict(phases) for phases in timed.phases],
        **told,
        "start_up_seconds": start_up.seconds,
        "seconds_to_first_step": to_first_step,
        "was_finite": timed.was_finite,
        **_work(summary),
    }
    Path(benching.result).write_text(json.dumps(result, allow_nan=False), encoding="utf-8")
    return 0


def _profiled(
    benching: Benching,
    steps: Iterator[StepBatches],
    train_step: TrainStep,
    report: Report,
    session: RankSession,
    trace: Path | None,
) -> int:
    """Goes on with steps under the profiler, which leaves its trace; the signal that ended it early, or 0."""
    model = train_step.model
    mark_slots(kernel_layers(model), model.head)
    taken = 0
    with tracing(train_step.device, trace, warm_up=PROFILER_WARM_UP_STEPS, active=PROFILED_STEPS) as end_step:
        for batches in steps:
            result = train_step(batches.step, batches.micro_batches, session.stop.requested)
            result.read()
            report.count(result)
            if result.totals.stop_signal:
                return result.totals.stop_signal
            end_step()
            taken += 1
    if taken < PROFILER_WARM_UP_STEPS + PROFILED_STEPS:
        raise too_few(benching.warm_up + benching.steps + taken, benching.all_steps, "a bench")
    return 0


def _summary(trace: Path, timed: Timed) -> Summary:
    window = timed.timed[-1]
    facts = Facts(
        tokens=window.tokens,
        slots=window.slots,
        supervised_tokens=window.supervised_tokens,
        unprofiled_step_seconds=window.step_seconds,
        model_flops_utilization=window.mfu,
        peak_memory_gib=window.peak_memory_gib,
        gemm_tflops=None,
    )
    events = read_trace(trace)
    return summarise(events, locate(events), facts)


def _work(summary: Summary) -> dict[str, Any]:
    """Of the profiled step: how many calls the GPU got, and seconds by kind of work."""
    kinds = {row.name: row.seconds for row in summary.table.kinds.values()}
    return {
        "launches": round(summary.gpu.calls) if summary.has_gpu else None,
        "gpu_busy_seconds": summary.gpu_busy_seconds if summary.has_gpu else None,
        "kinds": kinds,
    }
