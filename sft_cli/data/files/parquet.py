"""Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sft_cli.data.files.data_file import DataFile
from sft_cli.data.files.row_values import without_nulls
from sft_cli.data.raw import BadRow, RawRow
from sft_cli.errors import DataError

if TYPE_CHECKING:
    from pyarrow import RecordBatch


def read_parquet(file: DataFile) -> Iterator[RawRow]:
    """A batch of rows in memory at a time; their places count rows. One with text that is not UTF-8 has a problem.

    Raises:
        DataError: the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with file.open("rb", 0) as raw, pq.ParquetFile(raw) as table:
            rows = max(table.metadata.num_rows, 1)
            for batch in table.iter_batches(batch_size=1024):
                for value, problem in _values(batch):
                    number += 1
                    yield RawRow(f"{file}:{number}", value, number / rows, problem)
    except pa.ArrowException as error:
        raise DataError(
            f"not a readable Parquet file: {error}", where=str(file), fix="Fetch or write it anew."
        ) from error


def _values(batch: RecordBatch) -> list[tuple[Any, BadRow | None]]:
    """Each row's value, or why it has none: writers need not check that a column of text is UTF-8."""
    try:
        return [(without_nulls(row), None) for row in batch.to_pylist()]
    except UnicodeDecodeError as error:
        if batch.num_rows == 1:
            what = f"{error.reason} at byte {error.start + 1} of a text"
            return [(None, BadRow("not UTF-8", what, "Save its columns of text as UTF-8."))]
        return [value for row in range(batch.num_rows) for value in _values(batch.slice(row, 1))]
