"""Rows of a hub data set as they come, without a copy on this disk."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from sft_cli.data.files import without_nulls
from sft_cli.data.hub_errors import fetching
from sft_cli.data.raw import RawRow
from sft_cli.errors import DataError
from sft_cli.plan import hub

if TYPE_CHECKING:
    import datasets

ROWS_TO_COME = 100_000
"""What a data set that doesn't say how many rows it has is taken to have left, wherever one is in it."""


def stream_hub(builder: datasets.DatasetBuilder, repo: hub.Repo, split: str) -> Generator[RawRow]:
    """All rows of a split.

    Args:
        builder: of the pinned commit.
        repo: for errors.
        split: one name, or several with `+`.

    Raises:
        DataError: the split has a slice, or rows can't be fetched.
    """
    if "[" in split:
        raise DataError(
            f"the split {split} can't be streamed: parts of splits are cut from a copy",
            where=repo.where,
            fix="Name whole splits (`train`, `train+test`), or write `data: {streaming: false}`.",
        )
    known = builder.info.splits or {}
    total = sum(known[name].num_examples for name in split.split("+") if name in known)
    with fetching(repo):
        for number, row in enumerate(builder.as_streaming_dataset(split=split), start=1):
            share = min(1.0, number / total) if total else number / (number + ROWS_TO_COME)
            yield RawRow(f"{repo.id}[{split}]:{number}", without_nulls(row), share)
