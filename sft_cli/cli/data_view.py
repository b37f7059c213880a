"""Everything that `sftune data` shows, before it is text, a page or JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sft_cli.data.prepare import PreparedData
from sft_cli.data.report import SourceReport
from sft_cli.data.rows import TokenizedRows
from sft_cli.data.summary import Batching, Bin, Lengths, compare_batching, histogram, measure
from sft_cli.data.turn_ends import TurnEnds, find_turn_ends
from sft_cli.plan.plan import Plan

if TYPE_CHECKING:
    from sft_cli.data.pieces import Decoder, Piece

Part = Literal["train", "eval"]


@dataclass(frozen=True)
class Sample:
    """One row as text."""

    title: str
    text: str
    pieces: tuple[Piece, ...]
    token_ids: tuple[int, ...]
    supervised: tuple[int, ...]
    """0 or 1 a token; one at the start of a row counts for nothing, since nothing predicts it."""


@dataclass(frozen=True)
class SourceView:
    """One source of `data.train` or `data.eval`."""

    part: Part
    report: SourceReport
    ends: TurnEnds | None
    """None with `supervise: all`, where turns can't be told from the flags."""


@dataclass(frozen=True)
class DataView:
    origin: str
    plan: Plan
    sources: tuple[SourceView, ...]
    """Those of training first."""
    lengths: Lengths
    """Of the training rows, as all that follows."""
    bins: tuple[Bin, ...]
    batching: tuple[Batching, ...]
    samples: tuple[Sample, ...]
    row: Sample | None
    """The one that was asked for."""
    is_whole: bool
    """False where `rows` are the first of a stream, of which no more was looked at."""
    labels: dict[str, str]
    """By path of a source the name to show."""
    token_names: dict[int, str]
    """Of the tokens that end turns."""

    @property
    def supervised_tokens(self) -> int:
        """Of the training rows."""
        return sum(source.report.supervised_tokens for source in self.sources if source.part == "train")

    @property
    def rows(self) -> int:
        """Training rows that are left."""
        return sum(source.report.rows_out for source in self.sources if source.part == "train")


def make_view(
    plan: Plan, origin: str, decoder: Decoder, prepared: PreparedData, row: Sample | None, rows_each: int
) -> DataView:
    """Look at prepared data.

    Args:
        origin: what the recipe was read from.
        row: the row that was asked for.
        rows_each: how many rows of each training source become samples.
    """
    train = prepared.train
    sources = [
        *_sources("train", train, prepared.report.train, plan, decoder),
        *_sources("eval", prepared.eval, prepared.report.eval, plan, decoder),
    ]
    labels = _labels({source.report.path for source in sources})
    return DataView(
        origin=origin,
        plan=plan,
        sources=tuple(sources),
        lengths=measure(train.lengths),
        bins=histogram(train.lengths),
        batching=compare_batching(train, plan),
        samples=tuple(_samples(train, prepared.report.train, labels, decoder, rows_each)),
        row=row,
        is_whole=prepared.is_whole,
        labels=labels,
        token_names={
            token: decoder.token(token)
            for source in sources
            if source.ends is not None
            for token in (*source.ends.supervised, *source.ends.unsupervised)
        },
    )


def make_sample(title: str, decoder: Decoder, token_ids: NDArray[np.uint32], supervised: NDArray[np.uint8]) -> Sample:
    """A row as text."""
    ids = token_ids.tolist()
    flags = supervised.tolist()
    return Sample(title, decoder.text(ids), tuple(decoder.pieces(ids, flags)), tuple(ids), tuple(flags))


def to_json(view: DataView) -> dict[str, Any]:
    """What `sftune data --json` prints: lengths in tokens, shares from 0 to 1."""
    document = {
        "sources": [_source_json(source, view) for source in view.sources if source.part == "train"],
        "eval": [_source_json(source, view) for source in view.sources if source.part == "eval"],
        "rows": view.rows,
        "is_whole": view.is_whole,
        "tokens": asdict(view.lengths),
        "supervised_tokens": view.supervised_tokens,
        "histogram": [asdict(of_lengths) for of_lengths in view.bins],
        "batching": [asdict(way) for way in view.batching],
    }
    if view.row is not None:
        names = ("text", "token_ids", "supervised")
        document["row"] = {name: getattr(view.row, name) for name in names}
    return document


def _sources(
    part: Part, rows: TokenizedRows | None, reports: Sequence[SourceReport], plan: Plan, decoder: Decoder
) -> Iterator[SourceView]:
    ends: Sequence[TurnEnds | None] = [None] * len(reports)
    if rows is not None and plan.recipe.data.supervise != "all":
        special = np.array(sorted(decoder.special_ids), dtype=np.int64)
        max_length = plan.recipe.data.max_length or plan.recipe.batching.tokens
        ends = find_turn_ends(rows, special, len(reports), max_length, decoder.is_blank)
    for report, of_source in zip(reports, ends, strict=True):
        yield SourceView(part, report, of_source)


def _labels(paths: Collection[str]) -> dict[str, str]:
    """A file's path without its folders, where no other path ends alike."""
    names = Counter(Path(path).name for path in paths)
    return {
        path: Path(path).name if Path(path).is_absolute() and names[Path(path).name] == 1 else path for path in paths
    }


def _samples(
    rows: TokenizedRows, reports: Sequence[SourceReport], labels: dict[str, str], decoder: Decoder, rows_each: int
) -> Iterator[Sample]:
    first = 0
    for report in reports:
        for number in range(min(rows_each, report.rows_out)):
            title = f"{labels[report.path]}, row {number + 1:,} of the {report.rows_out:,} that are left"
            yield make_sample(title, decoder, *rows.row(first + number))
        first += report.rows_out


def _source_json(source: SourceView, view: DataView) -> dict[str, Any]:
    ends = source.ends
    if ends is None:
        return {**source.report.to_json(), "turn_ends": None}
    named = {
        key: {view.token_names[token]: turns for token, turns in counts.items()}
        for key, counts in (("supervised", ends.supervised), ("unsupervised", ends.unsupervised))
    }
    numbers = {key: getattr(ends, key) for key in ("rows", "rows_supervised", "turns", "cut", "no_token")}
    return {**source.report.to_json(), "turn_ends": numbers | named}
