"""One row of the recipe's training data, found by its number and tokenised as training would."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sft_cli.data.chat import EncodedChat
from sft_cli.data.prepare import prepare_row
from sft_cli.data.sources import open_source
from sft_cli.errors import UsageError
from sft_cli.plan.plan import Plan


@dataclass(frozen=True, eq=False)
class FoundRow:
    """A row and where it stands."""

    place: str
    """`chat.jsonl:104`."""
    chat: EncodedChat


def find_row(plan: Plan, number: int) -> FoundRow:
    """The row with this number, from 0, in the order of sources and files, before any row is left out.

    Args:
        plan: with pinned sources and a tokenizer folder.
        number: not negative.

    Raises:
        UsageError: there are fewer rows.
        DataError: the row is bad or left out, or the data can't be read.
        ModelError: the tokenizer or the chat template can't be used.
    """
    data = plan.recipe.data
    rows, cache_dir = 0, Path(data.cache_dir).expanduser()
    for source in data.train:
        with closing(open_source(source, cache_dir, streaming=data.streaming)()) as found:
            for row in found:
                if rows == number:
                    return FoundRow(row.place, prepare_row(plan, source, row))
                rows += 1
    raise UsageError(
        f"there is no row {number:,}: the data has {rows:,}, counted from 0 before any is left out",
        where="--row",
        fix=f"The last one is --row {rows - 1}." if rows else "Check the data.",
    )
