"""Rows of a source of the recipe: local files, a hub data set, or the built-in conversations."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from pathlib import Path

from sft_cli.data.builtin_chat import generate
from sft_cli.data.files import SUFFIXES, find_files, read_file
from sft_cli.data.hub import read_hub
from sft_cli.data.raw import RawRow
from sft_cli.errors import DataError
from sft_cli.recipe.schema import SourceSection

BUILTIN = "builtin:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def read_source(source: SourceSection) -> Iterator[RawRow]:
    """Read all rows of a source, in file order.

    Raises:
        DataError: there is nothing to read, or it can't be read. Raised by the first row asked for, or later.
    """
    files = local_files(source)
    if files is not None:
        for index, file in enumerate(files):
            for row in read_file(file):
                yield RawRow(row.place, row.value, (index + row.share_read) / len(files), row.problem)
    elif source.path.startswith(BUILTIN):
        yield from _read_builtin(source)
    else:
        yield from read_hub(source)


def evaluation_source(source: SourceSection) -> SourceSection:
    """A source under `data.eval`: of the built-in data the held-out part, where no split is named."""
    if source.path.startswith(BUILTIN) and source.split is None:
        return source.model_copy(update={"split": "heldout"})
    return source


def local_files(source: SourceSection) -> list[Path] | None:
    """The files of a local source; None for a built-in or a hub data set.

    Raises:
        DataError: nothing is there, or keys are set that go with hub data sets only.
    """
    if not _is_local(source.path):
        return None
    for key, value in (("subset", source.subset), ("split", source.split)):
        if value not in (None, "train"):
            raise DataError(
                f"`{key}: {value}` is set, but local files have none",
                where=source.path,
                fix=f"Remove `{key}`, or give the path of the file itself.",
            )
    return find_files(source.path)


def _is_local(path: str) -> bool:
    if path.startswith(BUILTIN):
        return False
    return (
        Path(path).exists()
        or path.startswith(("./", "../", "/", "~"))
        or path.lower().endswith(SUFFIXES)
        or glob.escape(path) != path
        or _HUB_ID.fullmatch(path) is None
    )


def _read_builtin(source: SourceSection) -> Iterator[RawRow]:
    if source.path != f"{BUILTIN}chat":
        raise DataError("no such built-in data set", where=source.path, fix="There is one: builtin:chat.")
    split = source.split or "train"
    if split not in ("train", "heldout"):
        raise DataError(f"no split {split!r}", where=source.path, fix="Its splits are train and heldout.")
    rows = generate("train" if split == "train" else "heldout")
    for number, row in enumerate(rows, start=1):
        yield RawRow(f"{source.path}[{split}]:{number}", row, number / len(rows))
