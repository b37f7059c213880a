"""The profile in a few sentences."""

from __future__ import annotations

from sft_cli.plan.plan import Plan
from sft_cli.telemetry.profile.findings import reached_tflops
from sft_cli.telemetry.profile.kinds import GEMM
from sft_cli.telemetry.profile.summary import Summary


def verdict(summary: Summary, plan: Plan) -> list[str]:
    """What bounds the step, how good its matrix products are, and what was measured with what."""
    lines = [_bound(summary), _work(summary)]
    if (products := _products(summary, plan)) is not None:
        lines.append(products)
    profiled, before = summary.step_seconds, summary.facts.unprofiled_step_seconds
    lines.append(
        f"A step took {profiled:.3f} s under the profiler, one before it {before:.3f} s ({profiled / before - 1:+.0%})."
    )
    return lines


def _bound(summary: Summary) -> str:
    launching = summary.launching
    if launching is None:
        return "No GPU took part: the host computes itself, so there is no launch to be bound by."
    times = f"{launching.enqueue_seconds:.3f} s of the host against {summary.gpu_busy_seconds:.3f} s of the GPU"
    if summary.launch_bound:
        return f"Launch-bound: {times}. The GPU is faster than it is told what to do."
    waited = 1 - (summary.gpu_busy or 0.0)
    return f"Not launch-bound: {times}. The GPU is idle for {waited:.0%} of the step."


def _work(summary: Summary) -> str:
    side = "GPU" if summary.has_gpu else "CPU"
    parts = sorted(summary.table.kinds.values(), key=lambda row: -row.seconds)[:3]
    shares = ", ".join(f"{row.name} {row.seconds / summary.table.seconds:.0%}" for row in parts)
    return f"Most of the {side} time: {shares}."


def _products(summary: Summary, plan: Plan) -> str | None:
    reached, ceiling = reached_tflops(summary, plan), summary.facts.gemm_tflops
    if reached is None or ceiling is None:
        return None
    share = summary.kind_share(GEMM)
    return (
        f"Matrix products are {share:.0%} of it and reach about {reached:.0f} TFLOP/s; one large one alone, "
        f"without a pause, {ceiling:.0f} on this card."
    )
