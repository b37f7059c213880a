"""Rows of a data set on the Hugging Face hub, or of its copy in the local cache."""

from __future__ import annotations

from collections.abc import Iterator

from sft_cli.data.files import without_nulls
from sft_cli.data.raw import RawRow
from sft_cli.errors import DataError
from sft_cli.recipe.schema import SourceSection


def read_hub(source: SourceSection) -> Iterator[RawRow]:
    """Download (once) and read a hub data set.

    Raises:
        DataError: it does not exist, is gated, has no such subset or split, or can't be reached.
    """
    import datasets

    split = source.split or "train"
    try:
        table = datasets.load_dataset(source.path, source.subset, split=split)
    except datasets.exceptions.DatasetNotFoundError as error:
        raise DataError(
            f"no such data set on the hub, or it is gated or private: {_first_line(error)}",
            where=source.path,
            fix="Check the name; for a gated data set accept its terms and run `hf auth login`. "
            "A local file needs its suffix (.jsonl, .json, .parquet) or a leading ./",
        ) from error
    except (OSError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"the hub data set can't be fetched: {_first_line(error)}",
            where=source.path,
            fix="Check the network (and HF_HUB_OFFLINE), or name a local file.",
        ) from error
    except ValueError as error:
        raise DataError(
            f"no such subset or split: {_first_line(error)}",
            where=f"{source.path} (subset {source.subset}, split {split})",
            fix="Set the source's subset and split.",
        ) from error
    for number, row in enumerate(table, start=1):
        yield RawRow(f"{source.path}[{split}]:{number}", without_nulls(row), number / len(table))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
