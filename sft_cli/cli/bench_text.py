"""The ladder as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sft_cli.cli.bench_document import IDLE
from sft_cli.cli.bench_ladder import PUBLISHED
from sft_cli.cli.visible import visible

Document = Mapping[str, Any]
Entry = Mapping[str, Any]

_HEADINGS = (
    "rung", "tokens/s", "ratio", "MFU", "peak GiB", "launches", "real", "step s", "hours", "spread", "warm-up s",
    "first step s",
)  # fmt: skip

_IDLE_SHARE_TOLD = 0.1


def bench_text(document: Document) -> str:
    """What was benched on what, a line a rung, and what the columns mean."""
    rungs = document["rungs"]
    return "\n".join([_head(document), *_table(rungs), *_failures(rungs), *_delays(rungs), *_foot(document)])


def _head(document: Document) -> str:
    layers = f", the first {document['layers']} layers with random weights" if document["layers"] else ""
    ranks = f"{document['ranks']} x " if (document["ranks"] or 1) > 1 else ""
    return f"{document['recipe']}: {document['model']}{layers}, on {ranks}{document['device']}"


def _table(entries: Sequence[Entry]) -> Iterator[str]:
    lines = [_HEADINGS, *(_cells(entry) for entry in entries)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(_HEADINGS))]
    for name, *numbers in lines:
        cells = [name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()


def _cells(entry: Entry) -> tuple[str, ...]:
    name = _name(entry)
    if entry["error"] is not None:
        return name, *["-"] * (len(_HEADINGS) - 1)
    rate = entry["tokens_per_second"]
    spread = max(rate - entry["tokens_per_second_min"], entry["tokens_per_second_max"] - rate) / rate
    return (
        name,
        f"{rate:,.0f}",
        _or_dash(entry["ratio"], ".2f"),
        _or_dash(entry["mfu"], ".1%"),
        f"{entry['peak_memory_gib']:.2f}",
        _or_dash(entry["launches"], ",.0f"),
        f"{entry['real_share']:.1%}",
        f"{entry['step_seconds']:.3f}",
        _or_dash(entry["hours_for_dataset"], ",.2f"),
        f"{spread:.1%}",
        f"{entry['warm_up_seconds']:.1f}",
        f"{entry['seconds_to_first_step']:.1f}",
    )


def _name(entry: Entry) -> str:
    """Where there are several calls, also which one it is of, and whether it was run to compare them."""
    if "call" not in entry:
        return str(entry["name"])
    return f"{entry['name']} (call {entry['call']}{', anchor' if entry['is_anchor'] else ''})"


def _failures(entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        if entry["error"] is not None:
            yield f"{_name(entry)} did not run: {visible(entry['error'])}"
        elif not entry["was_finite"]:
            yield f"{_name(entry)}: the loss or a gradient was not finite; a step takes as long all the same"


def _delays(entries: Sequence[Entry]) -> Iterator[str]:
    """What a rate has in it that isn't the GPU's work."""
    for entry in entries:
        if entry["error"] is not None:
            continue
        share = entry["kinds"].get(IDLE, 0.0) / entry["step_seconds"]
        if share > _IDLE_SHARE_TOLD:
            yield f"{_name(entry)}: for {share:.0%} of a step the GPU had nothing to do but wait for the host"
        # Files of `--append` from before these were counted don't say.
        if retries := entry.get("allocator_retries"):
            times = "once" if retries == 1 else f"{retries} times"
            yield (
                f"{_name(entry)}: {times} torch had to give unused memory back to the driver to find some, and the GPU "
                "waited meanwhile"
            )
        if late := entry.get("late_kernels"):
            kernels = ", ".join(f"{one['kernel']} ({one['seconds']:.1f} s)" for one in late)
            yield f"{_name(entry)}: while steps were taken Triton compiled {kernels}"


def _foot(document: Document) -> Iterator[str]:
    ran = [entry for entry in document["rungs"] if entry["error"] is None]
    if not ran:
        return
    yield from _to_published(ran)
    if (anchor := document.get("anchor")) is not None:
        yield f"{anchor} was run in each call, and ratios go through it; tokens a second of two calls do not compare"
        for number, call in enumerate(document["calls"], start=1):
            yield f"call {number}: {' '.join([call['recipe'], *(f'--set {one}' for one in call['sets'])])}"
    timed, before = ran[0]["timed_steps"], len(ran[0]["warm_up_step_seconds"])
    yield (
        f"real tokens a second, the median of {timed} steps after {before} that are not counted; spread: the farthest "
        "of them from it; hours: one pass over the data; launches: of a profiled step after them"
    )


def _to_published(ran: Sequence[Entry]) -> Iterator[str]:
    """Every rung beside the published recipe, where that ran; of several calls through the anchor."""
    speed = "ratio_to_anchor" if "ratio_to_anchor" in ran[0] else "tokens_per_second"
    published = next((entry[speed] for entry in ran if entry["name"] == PUBLISHED), None)
    others = [entry for entry in ran if entry["name"] != PUBLISHED and entry[speed] is not None]
    if published and others:
        yield f"times {PUBLISHED}: " + ", ".join(f"{_name(entry)} {entry[speed] / published:.2f}" for entry in others)


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
