"""The recipe's data as tokenised rows: read, rendered, encoded and cached, with a report of what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from sft_cli.data.blocks import Block, tokenised
from sft_cli.data.cache import RowWriter, cache_key, is_built, load_or_build
from sft_cli.data.chat import EncodedChat, check_chat, check_text, encode
from sft_cli.data.fingerprint import data_facts
from sft_cli.data.formats import to_chat
from sft_cli.data.progress import Advance, show_progress
from sft_cli.data.raw import BadRow, RawRow
from sft_cli.data.render_limits import bounded_memory
from sft_cli.data.report import DataReport, SourceReport
from sft_cli.data.rows import TokenizedRows
from sft_cli.data.sources import OpenedSource, evaluation_source, open_source
from sft_cli.errors import DataError
from sft_cli.plan.plan import Plan
from sft_cli.recipe.schema import DataSection, SourceSection

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sft_cli.data.rendering import Rendering
    from sft_cli.data.template import ChatRenderer

ROWS_AT_ONCE = 512
"""Rows encoded in one call: enough to keep all cores busy, few enough to keep memory small."""

TOO_LONG = "longer than max_length"
NOTHING_SUPERVISED = "no supervised token"
_WHY_LEFT_OUT = {
    TOO_LONG: "data.overlong: drop asks for that; truncate keeps the beginning of such rows.",
    NOTHING_SUPERVISED: "A row needs an assistant's turn, and part of it before data.max_length tokens.",
}


@dataclass(frozen=True, eq=False)
class PreparedData:
    """All rows of a run, memory-mapped."""

    train: TokenizedRows
    eval: TokenizedRows | None
    """None where the recipe has no `data.eval`."""
    report: DataReport


def prepare(plan: Plan, *, progress: bool) -> PreparedData:
    """Tokenise the recipe's training and evaluation data, or find it in the cache.

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
    parts = [_Part(plan, data.train), _Part(plan, tuple(map(evaluation_source, data.eval)))]
    for part in parts:
        part.open()  # all, before the first is tokenised: a wrong split under `eval` costs seconds too
    train, train_reports = parts[0].prepare(progress=progress)
    if not data.eval:
        return PreparedData(train, None, DataReport(train_reports, ()))
    evaluation, eval_reports = parts[1].prepare(progress=progress)
    return PreparedData(train, evaluation, DataReport(train_reports, eval_reports))


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
    max_length = data.max_length if data.max_length is not None else plan.recipe.batching.tokens
    tokenisation = _Tokenisation(source, strict, max_length, *_load_model_side(plan))
    for chat in tokenisation.chats(iter([row]), lambda rows, share: None):
        return chat
    (reason,) = tokenisation.report().dropped
    raise DataError(f"the row is left out: {reason}", where=row.place, fix=_WHY_LEFT_OUT[reason])


class _Part:
    """The sources of `data.train` or `data.eval`."""

    def __init__(self, plan: Plan, sources: tuple[SourceSection, ...]) -> None:
        data = plan.recipe.data
        self._plan = plan
        self._sources = sources
        self._max_length = data.max_length if data.max_length is not None else plan.recipe.batching.tokens
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
            tokenizer, renderer = _load_model_side(self._plan)
            reports = []
            for index, (source, read) in enumerate(zip(self._sources, opened, strict=True)):

                def tokenise(rows: list[RawRow], source: SourceSection = source) -> Block:
                    data = self._plan.recipe.data
                    tokenisation = _Tokenisation(source, data, self._max_length, tokenizer, renderer)
                    chats = list(tokenisation.chats(iter(rows), lambda rows, share: None))
                    return Block(chats, tokenisation.report(), rows[-1].share_read)

                report = None
                with (
                    show_progress(_short_name(source.path), shown=progress) as advance,
                    closing(tokenised(read(), tokenise)) as blocks,
                ):
                    for block in blocks:
                        writer.append(block.rows, index)
                        report = block.report if report is None else report.plus(block.report)
                        advance(report.rows_in, block.share_read)
                if report is None:
                    raise DataError(
                        "holds no row", where=source.path, fix="An empty source is a mistake: fill it or remove it."
                    )
                reports.append(report)
            _refuse_empty(reports)
            return tuple(reports)

        return load_or_build(self._cache_dir, self._key, build)


def _load_model_side(plan: Plan) -> tuple[PreTrainedTokenizerFast, ChatRenderer]:
    # Imported here: transformers takes seconds, which a run whose tokens are cached does not spend.
    from sft_cli.data.template import ChatRenderer, read_template
    from sft_cli.data.tokenizer import load_tokenizer

    model = plan.recipe.model
    tokenizer = load_tokenizer(plan.tokenizer_folder, trust_remote_code=model.trust_remote_code)
    origin = model.chat_template or str(plan.tokenizer_folder)
    return tokenizer, ChatRenderer(tokenizer, read_template(model.chat_template), origin)


class _Tokenisation:
    """One source on its way to tokens, counting what becomes of its rows."""

    def __init__(
        self,
        source: SourceSection,
        data: DataSection,
        max_length: int,
        tokenizer: PreTrainedTokenizerFast,
        renderer: ChatRenderer,
    ) -> None:
        self._source = source
        self._data = data
        self._max_length = max_length
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._formats: set[str] = set()
        self._dropped: Counter[str] = Counter()
        self._changed: Counter[str] = Counter()
        self._rows_in = self._rows_out = self._tokens = self._supervised = 0

    def chats(self, raw_rows: Iterator[RawRow], advance: Advance) -> Iterator[EncodedChat]:
        """The rows that remain, in file order."""
        while batch := list(islice(raw_rows, ROWS_AT_ONCE)):
            with bounded_memory():
                rendered = [(row.place, rendering) for row in batch if (rendering := self._render(row)) is not None]
            encoded = encode(
                self._tokenizer,
                [rendering for _, rendering in rendered],
                self._data.supervise,
                self._renderer.turn_tokens,
            )
            for (place, _), chat in zip(rendered, encoded, strict=True):
                fitted = self._fit(place, chat)
                if fitted is not None:
                    self._rows_out += 1
                    self._tokens += len(fitted.token_ids)
                    self._supervised += fitted.targets
                    yield fitted
            self._rows_in += len(batch)
            advance(self._rows_in, batch[-1].share_read)

    def report(self) -> SourceReport:
        return SourceReport(
            path=self._source.path,
            format="+".join(sorted(self._formats)),
            rows_in=self._rows_in,
            rows_out=self._rows_out,
            dropped=dict(self._dropped.most_common()),
            tokens=self._tokens,
            supervised_tokens=self._supervised,
            changed=dict(self._changed.most_common()),
        )

    def _render(self, row: RawRow) -> Rendering | None:
        """The row as text; None where it is bad and `bad_rows` is `skip`."""
        try:
            if row.problem is not None:
                raise row.problem
            chat = to_chat(row.value, self._source.format)
            check_chat(chat, self._data.supervise)
            self._formats.add(chat.format)
            rendering = self._renderer.render(chat)
            check_text(rendering)
        except BadRow as problem:
            if self._data.bad_rows == "error":
                fix = " ".join(filter(None, [problem.fix, "data.bad_rows: skip leaves such rows out and counts them."]))
                raise DataError(str(problem), where=row.place, fix=fix) from problem
            self._dropped[problem.reason] += 1
            return None
        self._changed.update(rendering.changed)
        return rendering

    def _fit(self, place: str, chat: EncodedChat) -> EncodedChat | None:
        """Apply `overlong`; None where nothing remains to learn from."""
        if len(chat.token_ids) > self._max_length:
            if self._data.overlong == "error":
                raise DataError(
                    f"the row has {len(chat.token_ids):,} tokens, more than max_length {self._max_length:,}",
                    where=place,
                    fix="Set data.overlong to truncate or drop, or raise data.max_length.",
                )
            if self._data.overlong == "drop":
                self._dropped[TOO_LONG] += 1
                return None
            chat = chat.cut(self._max_length)
        if chat.targets == 0:
            self._dropped[NOTHING_SUPERVISED] += 1
            return None
        return chat


def _short_name(path: str) -> str:
    """A local path without its folders, so that a bar has room on the line."""
    return Path(path).name if Path(path).is_absolute() else path


def _refuse_empty(reports: list[SourceReport]) -> None:
    if any(report.rows_out for report in reports):
        return
    dropped: Counter[str] = Counter()
    for report in reports:
        dropped.update(report.dropped)
    reasons = ", ".join(f"{reason}: {rows:,}" for reason, rows in dropped.most_common())
    rows_in = sum(report.rows_in for report in reports)
    raise DataError(
        f"no supervised token anywhere: all {rows_in:,} rows were left out ({reasons})",
        where=", ".join(report.path for report in reports),
        fix="Check that rows have assistant messages, data.supervise, data.max_length, and the chat template.",
    )
