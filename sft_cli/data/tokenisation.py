"""Rows to tokens: rendered, checked, encoded, cut to length, and counted where they are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sft_cli.data.chat import EncodedChat, check_chat, check_text, encode
from sft_cli.data.formats import to_chat
from sft_cli.data.raw import BadRow, RawRow
from sft_cli.data.render_limits import bounded_memory
from sft_cli.data.report import SourceReport
from sft_cli.errors import DataError
from sft_cli.plan.plan import Plan
from sft_cli.recipe.schema import DataSection, SourceSection

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sft_cli.data.rendering import Rendering
    from sft_cli.data.template import ChatRenderer

TOO_LONG = "longer than max_length"
NOTHING_SUPERVISED = "no supervised token"


def load_model_side(plan: Plan) -> tuple[PreTrainedTokenizerFast, ChatRenderer]:
    """The plan's tokenizer, and what renders chats with its template.

    Raises:
        ModelError: one of them can't be used.
    """
    # Imported here: transformers takes seconds, which a run whose tokens are cached does not spend.
    from sft_cli.data.template import ChatRenderer, read_template
    from sft_cli.data.tokenizer import load_tokenizer

    model = plan.recipe.model
    tokenizer = load_tokenizer(plan.tokenizer_folder, trust_remote_code=model.trust_remote_code)
    origin = model.chat_template or str(plan.tokenizer_folder)
    return tokenizer, ChatRenderer(tokenizer, read_template(model.chat_template), origin)


def longest_row(plan: Plan) -> int:
    """`data.max_length`, in tokens."""
    recipe = plan.recipe
    return recipe.data.max_length if recipe.data.max_length is not None else recipe.batching.tokens


class Tokenisation:
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

    def chats(self, rows: list[RawRow]) -> list[EncodedChat]:
        """Those of the rows that remain, in file order."""
        with bounded_memory():
            rendered = [(row.place, rendering) for row in rows if (rendering := self._render(row)) is not None]
        texts = [rendering for _, rendering in rendered]
        encoded = encode(self._tokenizer, texts, self._data.supervise, self._renderer.turn_tokens)
        fitted = [self._fit(place, chat) for (place, _), chat in zip(rendered, encoded, strict=True)]
        remaining = [chat for chat in fitted if chat is not None]
        self._rows_in += len(rows)
        self._rows_out += len(remaining)
        self._tokens += sum(len(chat.token_ids) for chat in remaining)
        self._supervised += sum(chat.targets for chat in remaining)
        return remaining

    def report(self) -> SourceReport:
        """Of all rows so far."""
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


def no_row(source: SourceSection) -> DataError:
    """Of a source that holds nothing at all."""
    return DataError("holds no row", where=source.path, fix="An empty source is a mistake: fill it or remove it.")


def refuse_empty(reports: Sequence[SourceReport]) -> None:
    """Raises DataError where no row of any source remains."""
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
