"""A profile in words and tables, for a terminal, a log and the page: all from profile.json's content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]

ROWS = 12
"""Operations of a table that is shown; profile.json has more."""
_LONGEST_NAME = 72
NO_FINDINGS = "Nothing that sftune knows how to win back costs a hundredth of a step."


@dataclass(frozen=True)
class Grid:
    """A table: text in the first column, numbers in the others."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def headline(content: Document) -> str:
    """What was profiled."""
    steps, ranks = content["profiled_steps"], content["ranks"]
    which = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    where = f"{ranks} ranks, the first of them" if ranks > 1 else content["device"]
    return (
        f"{content['model']} on {where}: {which}, {content['step_seconds']:.3f} s{' each' if len(steps) > 1 else ''}, "
        f"{content['tokens_per_second']:,.0f} real tokens a second"
    )


def overview(content: Document) -> Grid:
    """The numbers that a verdict rests on, each with its name."""
    rows = [
        ("CPU operations", f"{content['cpu']['calls']:,.0f} calls, {_seconds(content['cpu']['seconds'])}"),
        ("GPU kernels and copies", f"{content['gpu']['calls']:,.0f} calls, {_seconds(content['gpu']['seconds'])}"),
        ("GPU busy", _share(content["gpu_busy"])),
        ("launch-bound", {None: "-", True: "yes", False: "no"}[content["launch_bound"]]),
        ("GEMM share", _share(content["gemm"]["share"])),
        ("GEMM TFLOP/s", _products(content["gemm"])),
        ("MFU", _share(content["model_flops_utilization"])),
        ("padding", _share(content["padding_share"])),
        ("recomputation", _share(content["recompute_share"])),
        ("exposed communication", _seconds(content["exposed_communication_seconds"])),
        ("data wait", _seconds(content["data_wait_seconds"])),
        ("peak memory", f"{content['peak_memory_gib']:.2f} GiB"),
    ]
    return Grid("one step", ("", ""), tuple(rows))


def tables(content: Document) -> Iterator[Grid]:
    """Top operations on each side, work by kind and by part of the step."""
    for side in ("cpu", "gpu"):
        table = content[side]
        if table["calls"]:
            yield _operations(side, table)
    side = "gpu" if content["gpu"]["calls"] else "cpu"
    for key, title in (("kinds", "work by kind"), ("parts", "work by part of the step")):
        yield Grid(
            f"{side.upper()} {title}",
            ("", "calls", "seconds", "share"),
            tuple(_row(row, content[side]["seconds"]) for row in _by_time(content[side][key])),
        )


def finding_lines(content: Document) -> list[str]:
    """The findings, the dearest first; in words where there is none."""
    found = content["findings"]
    if not found:
        return [NO_FINDINGS]
    step = content["step_seconds"]
    return [f"{one['costs_seconds']:.3f} s of {step:.3f} s a step: {one['what']} -> {one['change']}" for one in found]


def plain(grids: Sequence[Grid]) -> str:
    """Aligned columns, no wrapping."""
    return "\n\n".join(_plain(grid) for grid in grids)


def shortened(name: str) -> str:
    """A kernel's name with its middle left out, where it is a template's."""
    if len(name) <= _LONGEST_NAME:
        return name
    half = (_LONGEST_NAME - 3) // 2
    return f"{name[: _LONGEST_NAME - 3 - half]}...{name[-half:]}"


def _operations(side: str, table: Document) -> Grid:
    shown = table["top"][:ROWS]
    rest = [table["calls"] - sum(r["calls"] for r in shown), table["seconds"] - sum(r["seconds"] for r in shown)]
    rows = [_row(row, table["seconds"]) for row in shown]
    if len(table["top"]) > ROWS:
        rows.append(_row({"name": "all others", "calls": rest[0], "seconds": max(0.0, rest[1])}, table["seconds"]))
    rows.append(_row({"name": "total", "calls": table["calls"], "seconds": table["seconds"]}, table["seconds"]))
    what = "operations, own time" if side == "cpu" else "kernels and copies"
    return Grid(f"{side.upper()} {what}, per step", ("", "calls", "seconds", "share"), tuple(rows))


def _row(row: Document, total: float) -> tuple[str, ...]:
    share = row["seconds"] / total if total else 0.0
    return shortened(row["name"]), f"{row['calls']:,.0f}", f"{row['seconds']:.4f}", f"{share:.1%}"


def _by_time(rows: Sequence[Document]) -> list[Document]:
    return sorted(rows, key=lambda row: -row["seconds"])


def _plain(grid: Grid) -> str:
    lines = [grid.headings, *grid.rows] if any(grid.headings) else list(grid.rows)
    widths = [max(len(line[at]) for line in lines) for at in range(len(grid.headings))]
    is_table = len(grid.headings) > 2
    text = [
        "  ".join(
            cell.rjust(width) if is_table and at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([grid.title, *(f"  {line}" for line in text)])


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f} s"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _products(gemm: Document) -> str:
    if gemm["tflops"] is None:
        return "-"
    ceiling = "" if gemm["ceiling_tflops"] is None else f" of {gemm['ceiling_tflops']:.0f} that one large product has"
    return f"{gemm['tflops']:.0f}{ceiling}"
