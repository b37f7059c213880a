"""A plan as text: aligned columns, no wrapping, one fact a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sft_cli.cli.visible import one_line

if TYPE_CHECKING:
    from sft_cli.data.prepare import PreparedData
    from sft_cli.plan.plan import Plan

_BILLION = 1e9


def plan_text(plan: Plan, origin: str) -> str:
    """Everything `sftune plan` shows.

    Args:
        plan: resolved.
        origin: what the recipe was read from.
    """
    blocks = [
        _table(_overview(plan, origin)),
        "choices\n"
        + _indented(_table([(choice.key, _value(choice.value), choice.because) for choice in plan.choices])),
        "memory of one process, GiB, estimated\n" + _indented(_table(_memory(plan))),
    ]
    return "\n\n".join(blocks)


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
    lines += [f"{at.key} {at.value}: {at.because}" for at in plan.choices if at.key == "batching.order"]
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
        ("writes to", plan.recipe.output_dir),
    ]


def _memory(plan: Plan) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [(name, f"{gib:10.3f}") for name, gib in plan.memory_gib.model_dump().items()]
    if plan.gpu_memory_gib is not None:
        verdict = "fits" if plan.fits else "does not fit"
        rows.append(("of the GPU's", f"{plan.gpu_memory_gib:10.3f}", verdict))
    return rows


def _value(value: Any) -> str:
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
