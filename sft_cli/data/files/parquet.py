"""Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sft_cli.data.files.row_values import without_nulls
from sft_cli.data.raw import RawRow
from sft_cli.errors import DataError


def read_parquet(file: Path) -> Iterator[RawRow]:
    """A batch of rows in memory at a time; their places count rows.

    Raises:
        DataError: the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(file) as table:
            rows = max(table.metadata.num_rows, 1)
            for batch in table.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield RawRow(f"{file}:{number}", without_nulls(row), number / rows)
    except pa.ArrowException as error:
        raise DataError(
            f"not a readable Parquet file: {error}", where=str(file), fix="Fetch or write it anew."
        ) from error
