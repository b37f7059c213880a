"""What `sftune data` says of its numbers, in words and cells; a terminal, a pipe and a page all say the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sft_cli.cli.data_view import DataView, Sample, SourceView
from sft_cli.data.report import SourceReport
from sft_cli.data.summary import Batching
from sft_cli.data.turn_ends import TurnEnds

SOURCE_HEADINGS = ("", "source", "format", "rows\nin", "rows\nout", "left\nout", "tokens", "supervised")
BATCHING_HEADINGS = (
    "mode", "order", "real\nshare", "micro-\nbatches", "examples\neach", "steps", "examples\na step",
)  # fmt: skip
"""In two lines where room is scarce; see `in_one_line`."""
THIS = "this recipe"
LEGEND = "the loss counts them, the rest is context"
_MOST_NAMES = 3


@dataclass(frozen=True)
class Remark:
    """Something to know of a source."""

    kind: Literal["good", "note", "bad"]
    text: str


@dataclass(frozen=True)
class Stretch:
    """Consecutive characters of a row that look alike."""

    text: str
    supervised: bool
    special: bool = False
    left_out: bool = False
    """Stands for text that is not shown."""


def overview(view: DataView) -> str:
    """One line."""
    share = percent(view.supervised_tokens / view.lengths.total)
    data = view.plan.recipe.data
    rows = f"{view.rows:,} rows" if view.is_whole else f"the first {view.rows:,} rows of a stream, the rest not read"
    return f"{view.origin}: {rows}, {view.lengths.total:,} tokens, {share} supervised ({data.supervise})"


def source_cells(view: DataView) -> list[tuple[str, ...]]:
    """A row a source under `SOURCE_HEADINGS`."""
    return [_source_cells(source, view) for source in view.sources]


def source_remarks(view: DataView) -> Iterator[tuple[str, Remark]]:
    """For each source why rows were left out, what the template changed, whether turns' ends are supervised.

    With the source's part and name.
    """
    for source in view.sources:
        for remark in _remarks(source, view):
            yield f"{source.part} {view.labels[source.report.path]}", remark


def length_words(view: DataView) -> str:
    """Mean, percentiles and maximum."""
    found = view.lengths
    return (
        f"mean {found.mean:,.0f}, half up to {found.p50:,.0f}, 90% up to {found.p90:,.0f}, "
        f"99% up to {found.p99:,.0f}, longest {found.max:,}"
    )


def batching_title(view: DataView) -> str:
    """What the table of `batching_cells` holds for."""
    recipe, ranks = view.plan.recipe, view.plan.world.ranks
    return (
        f"{'one epoch' if view.is_whole else 'these rows'}, micro-batches of up to {recipe.batching.tokens:,} slots, "
        f"steps of {recipe.train.tokens_per_step:,}, {ranks} rank{'s' if ranks > 1 else ''}"
    )


def batching_cells(way: Batching) -> tuple[str, ...]:
    """Under `BATCHING_HEADINGS`."""
    steps = ("too few", "-") if way.steps is None else (f"{way.steps:,}", f"{way.examples_per_step:,.1f}")
    each = f"{way.examples_per_micro_batch:,.1f}"
    return (way.mode, way.order, percent(way.real_share), f"{way.micro_batches:,}", each, *steps)


def sample_words(sample: Sample) -> str:
    """A row's title and size."""
    return f"{sample.title}: {len(sample.token_ids):,} tokens, {sum(sample.supervised):,} supervised"


def stretches(sample: Sample) -> Iterator[Stretch]:
    """A row as the fewest stretches of one look."""
    pending: Stretch | None = None
    for piece in sample.pieces:
        if pending is not None and (pending.supervised, pending.special) == (piece.supervised, piece.special):
            pending = replace(pending, text=pending.text + piece.text)
        else:
            if pending is not None:
                yield pending
            pending = Stretch(piece.text, piece.supervised, piece.special)
    if pending is not None:
        yield pending


def shortened(parts: Iterator[Stretch], each: int = 400, all_of_them: int = 1_600) -> Iterator[Stretch]:
    """The same with the middle of long stretches left out, and the end of long rows.

    Args:
        each: characters of a stretch that stay.
        all_of_them: characters after which the row ends.
    """
    shown = 0
    for part in parts:
        if shown >= all_of_them:
            rest = len(part.text) + sum(len(later.text) for later in parts)
            yield Stretch(_left_out(rest), supervised=False, left_out=True)
            return
        if len(part.text) <= each + 100:
            shown += len(part.text)
            yield part
            continue
        shown += each
        head = each * 2 // 3
        yield replace(part, text=part.text[:head])
        yield replace(part, text=_left_out(len(part.text) - each), left_out=True)
        yield replace(part, text=part.text[head - each :])


def in_one_line(headings: Sequence[str]) -> tuple[str, ...]:
    """Headings for where there is room."""
    return tuple(heading.replace("-\n", "-").replace("\n", " ") for heading in headings)


def percent(share: float) -> str:
    """`99.7%`."""
    return f"{100 * share:.1f}%"


def _source_cells(source: SourceView, view: DataView) -> tuple[str, ...]:
    report = source.report
    share = percent(report.supervised_tokens / report.tokens) if report.tokens else "-"
    counts = (report.rows_in, report.rows_out, report.rows_in - report.rows_out, report.tokens)
    return (source.part, view.labels[report.path], report.format or "-", *(f"{count:,}" for count in counts), share)


def _remarks(source: SourceView, view: DataView) -> Iterator[Remark]:
    for reason, rows in source.report.dropped.items():
        yield Remark("note", f"{_count(rows, 'row')} left out: {reason}")
    for reason, rows in source.report.to_json().get("changed", {}).items():
        yield Remark("bad", f"{_count(rows, 'row')} with {reason}")
    if source.ends is None:
        yield _all_remark(source.report)
    elif source.ends.turns:
        yield from _end_remarks(source.ends, view)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _left_out(characters: int) -> str:
    return f" [... {characters:,} characters ...] "


def _all_remark(report: SourceReport) -> Remark:
    others = report.tokens - report.rows_out - report.supervised_tokens
    if others:
        return Remark("note", f"{others:,} tokens are not supervised, though data.supervise is all: their rows say so")
    return Remark("good", "every token is supervised, turns' ends too")


def _end_remarks(ends: TurnEnds, view: DataView) -> Iterator[Remark]:
    tokens = sorted(
        {*ends.supervised, *ends.unsupervised},
        key=lambda token: -ends.supervised.get(token, 0) - ends.unsupervised.get(token, 0),
    )
    if not tokens:
        yield Remark("note", "no special token ends a turn: what follows turns in the text is all that says stop")
        return
    names = [view.token_names[token] for token in tokens[:_MOST_NAMES]]
    name = " or ".join(names) + (" or others" if len(tokens) > _MOST_NAMES else "")
    whole = ends.rows_supervised == ends.rows
    kind: Literal["good", "note", "bad"] = "good" if whole else "bad" if ends.unsupervised else "note"
    yield Remark(kind, f"the turn's end {name} is supervised in {ends.rows_supervised:,} of {ends.rows:,} rows")
    unsupervised = sum(ends.unsupervised.values())
    if unsupervised:
        yield Remark("bad", f"{_count(unsupervised, 'turn')} with an unsupervised end: the model won't learn to stop")
    if ends.cut:
        yield Remark("note", f"{_count(ends.cut, 'turn')} cut off at max_length")
    if ends.no_token:
        yield Remark("note", f"{_count(ends.no_token, 'turn')} with no special token at the end")
