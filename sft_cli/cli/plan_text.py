"""A plan as text: aligned columns, no wrapping, one fact a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sft_cli.cli.fit_text import fit_text, gpus_text
from sft_cli.cli.visible import one_line
from sft_cli.plan.memory import OUTSIDE_TENSORS_GIB

if TYPE_CHECKING:
    from sft_cli.data.prepare import PreparedData
    from sft_cli.plan.fit import Fit
    from sft_cli.plan.plan import Plan
    from sft_cli.plan.speed import Speed

_BILLION = 1e9

_SAID_BY_TRAIN = ("batching.order", "model.master_dtype")
"""Choices of the user's own whose cost no number of the run would show."""


def plan_text(plan: Plan, origin: str, fit: Fit, speed: Speed) -> str:
    """Everything `sftune plan` shows.

    Args:
        plan: resolved.
        origin: what the recipe was read from.
        fit: see `find_fit`.
        speed: see `estimate_speed`.
    """
    where = f", at the worst moment of a step: {plan.memory_moment}" if plan.memory_moment else ""
    blocks = [
        _table([*_overview(plan, origin), *_needs(plan, fit, speed), ("writes to", plan.recipe.output_dir)]),
        "choices\n"
        + _indented(_table([(choice.key, _value(choice.value), choice.because) for choice in plan.choices])),
        f"memory of one process, GiB, estimated{where}\n" + _indented(_table(_memory(plan))),
        fit_text(plan, fit),
    ]
    return "\n\n".join(block for block in blocks if block is not None)


def run_text(plan: Plan, prepared: PreparedData, origin: str) -> str:
    """What `sftune train` says before it starts: what runs, on how much data, what of it was left out and
    what the chat template makes of it."""
    rows = prepared.train
    model = f"{plan.recipe.model.path}, {parameters_text(plan.model.parameters)} parameters"
    found = f"{len(rows):,} rows, {rows.offsets[-1]:,} tokens"
    if plan.recipe.data.streaming:
        found = f"a stream, looked at {'all' if prepared.is_whole else 'the first'} {found}"
    lines = [
        f"{origin}: {model}, {world_text(plan)}",
        f"{found}: {plan.steps:,} steps of {plan.tokens_per_step:,} slots",
    ]
    lines += [f"{at.key} {at.value}: {at.because}" for at in plan.choices if at.key in _SAID_BY_TRAIN]
    for source in (*prepared.report.train, *prepared.report.eval):
        reasons = ", ".join(f"{one_line(reason)}: {count:,}" for reason, count in source.dropped.items())
        if reasons:
            lines.append(
                f"{source.path}: {source.rows_in - source.rows_out:,} of {source.rows_in:,} rows left out ({reasons})"
            )
        lines += [f"{source.path}: {count:,} rows with {reason}" for reason, count in source.changed.items()]
    return "\n".join([*lines, f"writes to {plan.recipe.output_dir}"])


def parameters_text(parameters: int) -> str:
    """`2.1M`, `26.9B`."""
    for size, letter in ((_BILLION, "B"), (1e6, "M"), (1e3, "k")):
        if parameters >= size:
            return f"{parameters / size:.1f}{letter}"
    return str(parameters)


def world_text(plan: Plan) -> str:
    """`1 process on the CPU`, `8 x NVIDIA H200`."""
    world = plan.world
    if world.device == "cpu":
        return f"{world.ranks} process{'es' if world.ranks > 1 else ''} on the CPU"
    return f"{world.ranks} x {world.gpu_name}"


def _overview(plan: Plan, origin: str) -> list[Sequence[str]]:
    steps = f"{plan.steps:,}" if plan.steps is not None else f"unknown: {plan.steps_because}"
    per_step = f"{plan.tokens_per_step:,} slots in {plan.micro_batches_per_step} micro-batches"
    return [
        ("recipe", origin),
        ("model", f"{plan.recipe.model.path}, {parameters_text(plan.model.parameters)} parameters"),
        ("runs on", world_text(plan)),
        ("steps", steps),
        ("tokens per step", per_step),
        ("compute", f"{plan.flops_per_token / _BILLION:,.3g} GFLOPs a token, forward and backward"),
    ]


def _needs(plan: Plan, fit: Fit, speed: Speed) -> Iterator[Sequence[str]]:
    """GPUs and time, where they are known."""
    if plan.gpu_memory_gib is not None:
        yield "GPUs needed", gpus_text(plan, fit)
        yield "tokens a second", _bounds(speed.tokens_per_second, ",.0f", speed.because)
    if speed.hours != (None, None):
        yield "hours", _bounds(speed.hours, ",.2f", "from that speed")


def _bounds(bounds: tuple[float | None, float | None], form: str, because: str) -> str:
    least, most = ("" if bound is None else format(bound, form) for bound in bounds)
    if least == most:
        return f"{least}: {because}" if least else f"unknown: {because}"
    if least and most:
        return f"{least} to {most}: {because}"
    return f"{'at most ' + most if most else 'at least ' + least}: {because}"


def _memory(plan: Plan) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [(name, f"{gib:10.3f}") for name, gib in plan.memory_gib.model_dump().items()]
    if plan.gpu_memory_gib is not None:
        verdict = "fits" if plan.fits else "does not fit"
        rows.append(("beside tensors", f"{OUTSIDE_TENSORS_GIB:10.3f}", "CUDA, NCCL, what the allocator can't use"))
        rows.append(("of the GPU's", f"{plan.gpu_memory_gib:10.3f}", verdict))
    if plan.host_memory_gib:
        rows.append(("in host memory", f"{plan.host_memory_gib:10.3f}"))
    return rows


def _value(value: Any) -> str:
    """As a recipe has it."""
    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _table(rows: Iterable[Sequence[str]]) -> str:
    """Columns lined up; the last one is as long as it is."""
    lines = list(rows)
    columns = max(len(line) for line in lines)
    widths = [max((len(line[at]) for line in lines if len(line) > at + 1), default=0) for at in range(columns)]
    return "\n".join("  ".join(cell.ljust(widths[at]) for at, cell in enumerate(line)).rstrip() for line in lines)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
