"""The recipe's data as tokenised rows: read, rendered, encoded and cached, with a report of what was left out."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sft_cli.data.blocks import Block, tokenised
from sft_cli.data.cache import RowWriter, cache_key, is_built, load_or_build
from sft_cli.data.chat import EncodedChat
from sft_cli.data.fingerprint import data_facts
from sft_cli.data.progress import short_name, show_progress
from sft_cli.data.raw import RawRow
from sft_cli.data.report import DataReport, SourceReport
from sft_cli.data.rows import TokenizedRows
from sft_cli.data.sources import OpenedSource, evaluation_source, open_source
from sft_cli.data.stream.look import look
from sft_cli.data.tokenisation import (
    NOTHING_SUPERVISED,
    TOO_LONG,
    Tokenisation,
    load_model_side,
    longest_row,
    no_row,
    refuse_empty,
)
from sft_cli.errors import DataError
from sft_cli.plan.plan import Plan
from sft_cli.recipe.schema import SourceSection

_WHY_LEFT_OUT = {
    TOO_LONG: "data.overlong: drop asks for that; truncate keeps the beginning of such rows.",
    NOTHING_SUPERVISED: "A row needs an assistant's turn, and part of it before data.max_length tokens.",
}


@dataclass(frozen=True, eq=False)
class PreparedData:
    """All rows of a run, memory-mapped; of a stream its first ones, in memory."""

    train: TokenizedRows
    eval: TokenizedRows | None
    """None where the recipe has no `data.eval`."""
    report: DataReport
    is_whole: bool = True
    """False where the training rows are the beginning of a stream."""


def prepare(plan: Plan, *, progress: bool) -> PreparedData:
    """Tokenise the recipe's training and evaluation data, or find it in the cache; look at the beginning of a stream.

    Any number of processes may call this at the same time: one tokenises, the others wait and map its files.
    torch is not imported; transformers only where tokens are not in the cache.

    Args:
        plan: its data, model, `batching.tokens` and tokenizer count.
        progress: show how far tokenisation is, on stderr.

    Raises:
        DataError: a source is missing, empty or unreadable; a bad row with `bad_rows: error`; a row too long with
            `overlong: error`; no supervised token in any row.
        ModelError: the tokenizer or the chat template can't be used.
        CheckpointError: the cache can't be written.
    """
    data = plan.recipe.data
    training = None if data.streaming else _Part(plan, data.train)
    evaluation = _Part(plan, tuple(map(evaluation_source, data.eval)))
    # All, before the first row is tokenised: a wrong split under `eval` costs seconds too.
    if training is not None:
        training.open()
    evaluation.open()
    if training is None:
        first = look(plan, progress=progress)
        train, reports, is_whole = first.rows, first.reports, first.is_whole
    else:
        (train, reports), is_whole = training.prepare(progress=progress), True
    if not data.eval:
        return PreparedData(train, None, DataReport(reports, ()), is_whole)
    eval_rows, eval_reports = evaluation.prepare(progress=progress)
    return PreparedData(train, eval_rows, DataReport(reports, eval_reports), is_whole)


def prepare_evaluation(plan: Plan) -> TokenizedRows | None:
    """The rows of `data.eval` alone, as `prepare`; None where there are none."""
    data = plan.recipe.data
    return _Part(plan, tuple(map(evaluation_source, data.eval))).prepare(progress=False)[0] if data.eval else None


def prepare_row(plan: Plan, source: SourceSection, row: RawRow) -> EncodedChat:
    """Tokenise one row exactly as `prepare` would.

    Args:
        plan: as for `prepare`.
        source: of the recipe, which the row belongs to.
        row: as it was read.

    Raises:
        DataError: the row is bad, or would be left out; with its place and the reason, whatever `bad_rows` says.
        ModelError: the tokenizer or the chat template can't be used.
    """
    data = plan.recipe.data
    strict = data.model_copy(update={"bad_rows": "error"})
    tokenisation = Tokenisation(source, strict, longest_row(plan), *load_model_side(plan))
    for chat in tokenisation.chats([row]):
        return chat
    (reason,) = tokenisation.report().dropped
    raise DataError(f"the row is left out: {reason}", where=row.place, fix=_WHY_LEFT_OUT[reason])


class _Part:
    """The sources of `data.train` or `data.eval`."""

    def __init__(self, plan: Plan, sources: tuple[SourceSection, ...]) -> None:
        data = plan.recipe.data
        self._plan = plan
        self._sources = sources
        self._max_length = longest_row(plan)
        self._cache_dir = Path(data.cache_dir).expanduser()
        self._key = cache_key(data_facts(plan, sources, self._max_length))
        self._opened: list[OpenedSource] = []

    def open(self) -> None:
        """Find the sources, where their tokens are not in the cache."""
        if not is_built(self._cache_dir, self._key):
            self._opened = [open_source(source, self._cache_dir) for source in self._sources]

    def prepare(self, *, progress: bool) -> tuple[TokenizedRows, tuple[SourceReport, ...]]:
        def build(writer: RowWriter) -> tuple[SourceReport, ...]:
            opened = self._opened or [open_source(source, self._cache_dir) for source in self._sources]
            tokenizer, renderer = load_model_side(self._plan)
            reports = []
            for index, (source, read) in enumerate(zip(self._sources, opened, strict=True)):

                def tokenise(rows: list[RawRow], source: SourceSection = source) -> Block:
                    data = self._plan.recipe.data
                    tokenisation = Tokenisation(source, data, self._max_length, tokenizer, renderer)
                    chats = tokenisation.chats(rows)
                    return Block(chats, tokenisation.report(), rows[-1].share_read)

                report = None
                with (
                    show_progress(short_name(source.path), shown=progress) as advance,
                    closing(read()) as rows,
                    closing(tokenised(rows, tokenise)) as blocks,
                ):
                    for block in blocks:
                        writer.append(block.rows, index)
                        report = block.report if report is None else report.plus(block.report)
                        advance(report.rows_in, block.share_read)
                if report is None:
                    raise no_row(source)
                reports.append(report)
            refuse_empty(reports)
            return tuple(reports)

        return load_or_build(self._cache_dir, self._key, build)
