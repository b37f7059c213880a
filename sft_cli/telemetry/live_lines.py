"""What the live view shows of a run at a given width: a few lines, each of whole cells that fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from rich.text import Text

from sft_cli.telemetry.fields import field_of
from sft_cli.telemetry.gpu import GpuReading
from sft_cli.telemetry.progress import Progress, format_duration
from sft_cli.telemetry.sparkline import sparkline

_GAP = "  "
_LEAST_BAR, _MOST_BAR = 8, 40
_LEAST_SPARKLINE, _MOST_SPARKLINE = 6, 80
_LEAST_WITH_COURSE = 20
"""Columns; fewer hold the number alone."""
_WHOLE_FROM = 10
_BAR_STYLE, _REST_STYLE = "cyan", "bright_black"


@dataclass(frozen=True)
class Cell:
    text: Text
    rank: int
    """Where not all cells fit, those with the highest go first."""


def live_lines(progress: Progress, width: int) -> list[Text]:
    """How far, how good, how fast, and the GPU where there is one; the first lines tell the most.

    Args:
        width: columns of the terminal; no line is longer.
    """
    lines = [_how_far(progress, width), _loss(progress, width), _row(_rates(progress), width)]
    if progress.gpu is not None:
        lines.append(_row(_gpu_cells(progress.gpu), width))
    shown = [line for line in lines if line.plain]
    for line in shown:
        line.truncate(width)
    return shown


def _how_far(progress: Progress, width: int) -> Text:
    step = Text.assemble("step ", (f"{progress.step}/{progress.total_steps}", "bold"))
    cells = [Cell(step, 0)]
    if progress.total_steps:
        cells.append(Cell(Text(f"{progress.step / progress.total_steps:.0%}"), 2))
    if progress.seconds_left is not None:
        cells.append(Cell(Text(f"{format_duration(progress.seconds_left)} left"), 1))
    line = _row(cells, width)
    room = width - line.cell_len - len(_GAP)
    bar = _bar(progress, min(room, _MOST_BAR)) if room >= _LEAST_BAR else Text()
    return Text(_GAP if bar else "").join([bar, line])


def _loss(progress: Progress, width: int) -> Text:
    """The smoothed loss with its course in what room is left."""
    if progress.smoothed_loss is None or progress.loss is None:
        return Text()
    cells = [Cell(Text.assemble("loss ", (f"{progress.smoothed_loss:.4f}", "bold cyan")), 0)]
    cells.append(Cell(Text(f"(last {progress.loss:.4f})"), 2))
    if progress.eval_loss is not None:
        cells.append(Cell(Text(f"eval {progress.eval_loss:.4f}", style="magenta"), 1))
    has_course = len(progress.course.means) > 1 and width >= _LEAST_WITH_COURSE
    shown = _fitting(cells, width - len(_GAP) - _LEAST_SPARKLINE if has_course else width)
    texts = [cell.text for cell in shown]
    if has_course:
        room = width - sum(text.cell_len + len(_GAP) for text in texts)
        # Behind the number whose course it is.
        texts.insert(1, Text(sparkline(progress.course.means, min(room, _MOST_SPARKLINE)), style="cyan"))
    return Text(_GAP).join(texts)


def _rates(progress: Progress) -> Iterator[Cell]:
    if progress.tokens_per_second is not None:
        yield Cell(Text(f"{progress.tokens_per_second:,.0f} tok/s", style="green"), 0)
    if progress.mfu is not None:
        yield Cell(Text(f"MFU {progress.mfu:.1%}"), 1)
    if progress.step_seconds is not None:
        yield Cell(Text(f"{field_of('step_seconds').text(progress.step_seconds)}/step"), 3)
    if progress.learning_rate is not None:
        yield Cell(Text(f"lr {progress.learning_rate:.1e}", style="dim"), 4)
    if progress.grad_norm is not None:
        yield Cell(Text(f"grad {progress.grad_norm:.2f}", style="dim"), 5)
    if progress.peak_memory_gib is not None:
        yield Cell(Text(f"{progress.peak_memory_gib:.1f} GiB"), 2)


def _gpu_cells(gpu: GpuReading) -> Iterator[Cell]:
    """Whatever the driver was asked: numbers, words where there are some, errors where there are any."""
    for rank, (name, value) in enumerate(asdict(gpu).items()):
        if isinstance(value, tuple | list) and value:
            yield Cell(Text(", ".join(map(str, value)), style="yellow"), 1)
        elif isinstance(value, int | float) and name.endswith("errors"):
            if value:
                yield Cell(Text(f"{value:,} {name.replace('_', ' ')}", style="red"), 1)
        elif isinstance(value, int | float):
            yield Cell(Text(_gpu_number(name, value)), rank)


def _gpu_number(name: str, value: float) -> str:
    """Its title only where the unit does not say what it is."""
    field = field_of(f"gpu_{name}")
    number = field.text(round(value) if abs(value) >= _WHOLE_FROM else value)
    if name == "utilization":
        return f"GPU {number}"
    return number if field.unit in ("°C", "W") else f"{field.title.removeprefix('GPU ')} {number}"


def _row(cells: Iterator[Cell] | Sequence[Cell], width: int) -> Text:
    return Text(_GAP).join([cell.text for cell in _fitting(list(cells), width)])


def _fitting(cells: Sequence[Cell], width: int) -> list[Cell]:
    """In their order, without those that have no room."""
    kept = list(cells)
    while len(kept) > 1 and sum(cell.text.cell_len + len(_GAP) for cell in kept) - len(_GAP) > width:
        # The last of the least telling ones.
        kept.remove(max(reversed(kept), key=lambda cell: cell.rank))
    return kept


def _bar(progress: Progress, columns: int) -> Text:
    done = round(columns * min(1.0, progress.step / max(1, progress.total_steps)))
    return Text.assemble(("━" * done, _BAR_STYLE), ("━" * (columns - done), _REST_STYLE))
