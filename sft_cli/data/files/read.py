"""Any supported file, row by row."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from sft_cli.data.files.compression import uncompressed_name
from sft_cli.data.files.csv_table import read_csv
from sft_cli.data.files.data_file import DataFile
from sft_cli.data.files.json_document import read_json
from sft_cli.data.files.json_lines import read_json_lines
from sft_cli.data.files.parquet import read_parquet
from sft_cli.data.raw import RawRow
from sft_cli.errors import DataError

_READERS = {".jsonl": read_json_lines, ".json": read_json, ".csv": read_csv, ".parquet": read_parquet}

_UNREADABLE = (OSError, EOFError, zlib.error)
"""What opening and reading raise: no permission, a broken disk, a damaged or cut archive."""


def read_file(file: DataFile) -> Iterator[RawRow]:
    """Read the rows of one file, in order. A line that is not JSON is a row with a problem.

    All but .json is read as it goes, whatever its size.

    Raises:
        DataError: the file can't be read.
    """
    reader = _READERS[Path(uncompressed_name(file)).suffix]
    try:
        yield from reader(file)
    except _UNREADABLE as error:
        raise DataError(
            f"can't be read: {error}", where=str(file), fix="Check the file and its permissions."
        ) from error
