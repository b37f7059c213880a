"""Tokenised rows: what is left of a data set once it has been read, rendered and encoded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

_HASHED_BYTES = 256 * 2**20
_HASHED_BLOCKS = 256


@dataclass(frozen=True, eq=False)
class TokenizedRows:
    """Rows of different lengths, one after another in flat arrays, which may be memory-mapped.

    Row `i` is `token_ids[offsets[i]:offsets[i + 1]]`. Rows stand in the order of their sources and files.
    """

    token_ids: NDArray[np.uint32]
    """(N,) uint32: the tokens of all rows."""
    supervised: NDArray[np.uint8]
    """(N,) uint8: 1 where the token is to be predicted, 0 elsewhere."""
    offsets: NDArray[np.int64]
    """(rows + 1,) int64, from 0 to N."""
    source_of_row: NDArray[np.int32]
    """(rows,) int32: index into `data.train` (or `data.eval`) of the recipe."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """(rows,) int64: tokens of each row."""
        return np.diff(self.offsets)

    def row(self, index: int) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
        """Token ids and supervised flags of one row, as views."""
        start, end = int(self.offsets[index]), int(self.offsets[index + 1])
        return self.token_ids[start:end], self.supervised[start:end]


def rows_hash(rows: TokenizedRows) -> str:
    """Stands for the content of all rows, in their order: 32 hexadecimal digits.

    Lengths and sources count in full; of more than 256 MiB of tokens, blocks that are spread evenly over them, so that
    the largest set costs less than a second.
    """
    digest = xxhash.xxh3_128()
    digest.update(np.ascontiguousarray(rows.lengths).data)
    digest.update(np.ascontiguousarray(rows.source_of_row).data)
    for array in (rows.token_ids, rows.supervised):
        if array.nbytes <= _HASHED_BYTES:
            digest.update(np.ascontiguousarray(array).data)
            continue
        block = _HASHED_BYTES // _HASHED_BLOCKS // array.itemsize
        for start in np.linspace(0, len(array) - block, _HASHED_BLOCKS).astype(np.int64).tolist():
            digest.update(np.ascontiguousarray(array[start : start + block]).data)
    return digest.hexdigest()


def rows_from_lists(rows: list[tuple[list[int], list[int]]], source_of_row: list[int] | None = None) -> TokenizedRows:
    """Rows in memory from lists of (token ids, supervised flags); all of source 0 unless told otherwise."""
    lengths = [len(token_ids) for token_ids, _ in rows]
    return TokenizedRows(
        token_ids=_flat([token_ids for token_ids, _ in rows], np.uint32),
        supervised=_flat([supervised for _, supervised in rows], np.uint8),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        source_of_row=np.array(source_of_row if source_of_row is not None else [0] * len(rows), dtype=np.int32),
    )


def _flat(lists: list[list[int]], dtype: Any) -> NDArray[Any]:
    return np.array([item for items in lists for item in items], dtype=dtype)
