"""A source's rows on their way to tokens, in blocks: in this process while they are few, else over all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from sft_cli.data.chat import EncodedChat
from sft_cli.data.parallel import MOST_PROCESSES, ordered_map
from sft_cli.data.raw import RawRow
from sft_cli.data.report import SourceReport
from sft_cli.plan.cores import usable_cores

BLOCK_ROWS = 256
"""Enough that handing them to another process costs nothing, few enough to keep memory small."""
ROWS_ALONE = 2048
"""So many are tokenised before other processes are started: most of a small source, or the time to see a bad row."""

_PARALLELISM = "TOKENIZERS_PARALLELISM"


@dataclass(frozen=True, eq=False)
class Block:
    """What became of neighbouring rows of a source."""

    rows: Sequence[EncodedChat]
    """Those that remain, in file order."""
    report: SourceReport
    share_read: float
    """How much of the source has been read at its end, 0 to 1."""


def tokenised(rows: Iterator[RawRow], tokenise: Callable[[list[RawRow]], Block]) -> Generator[Block]:
    """All rows of a source in blocks, in file order; the same blocks whatever the number of cores.

    Args:
        rows: of one source.
        tokenise: makes a block of up to `BLOCK_ROWS` of them, without regard to any other.

    Raises:
        DataError: of the first row that can't be used.
    """
    blocks = iter(lambda: list(islice(rows, BLOCK_ROWS)), [])
    yield from map(tokenise, islice(blocks, ROWS_ALONE // BLOCK_ROWS))
    cores = min(usable_cores(), MOST_PROCESSES)
    if cores == 1:
        yield from map(tokenise, blocks)
        return
    with _single_threaded_tokenizers():
        yield from ordered_map(tokenise, blocks, cores)


@contextmanager
def _single_threaded_tokenizers() -> Iterator[None]:
    """A tokenizer that has used threads warns in each fork, and would start as many there as there are cores."""
    before = os.environ.get(_PARALLELISM)
    os.environ[_PARALLELISM] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PARALLELISM]
        else:
            os.environ[_PARALLELISM] = before
