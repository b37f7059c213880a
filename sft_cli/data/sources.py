"""Rows of a source of the recipe: files here or behind an address, a hub data set, the built-in conversations."""

from __future__ import annotations

import glob
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path

from sft_cli.data.builtin_chat import generate
from sft_cli.data.files import SUFFIXES, find_files, read_file
from sft_cli.data.hub import open_hub
from sft_cli.data.raw import RawRow
from sft_cli.data.remote.copies import read_copies
from sft_cli.data.remote.listing import pinned_listing
from sft_cli.data.remote.through import read_through
from sft_cli.errors import DataError
from sft_cli.plan.hub import is_hub_id
from sft_cli.recipe.paths import is_address
from sft_cli.recipe.schema import SourceSection

BUILTIN = "builtin:"
OpenedSource = Callable[[], Generator[RawRow]]
"""Reads all rows of a source, in file order; closing it ends what it has begun to fetch."""


def open_source(source: SourceSection, cache_dir: Path, *, streaming: bool = False) -> OpenedSource:
    """Find a source; of a hub data set also whether it has what is asked of it, before any row is downloaded.

    Args:
        source: as the plan has it.
        cache_dir: where copies of files behind an address are kept.
        streaming: read what is not on this machine as it comes, without a copy.

    Returns:
        What reads all rows, in file order; it raises a DataError where they can't be read.

    Raises:
        DataError: there is nothing to read.
    """
    if is_address(source.path):
        listing = pinned_listing(cache_dir, source.path, source.revision)
        return partial(read_through, listing) if streaming else partial(read_copies, listing, cache_dir)
    files = local_files(source)
    if files is not None:
        return partial(_read_files, files)
    if source.path.startswith(BUILTIN):
        return partial(_read_builtin, source)
    return open_hub(source, streaming=streaming)


def _read_files(files: list[Path]) -> Generator[RawRow]:
    for index, file in enumerate(files):
        for row in read_file(file):
            yield RawRow(row.place, row.value, (index + row.share_read) / len(files), row.problem)


def evaluation_source(source: SourceSection) -> SourceSection:
    """A source under `data.eval`: of the built-in data the held-out part, where no split is named."""
    if source.path.startswith(BUILTIN) and source.split is None:
        return source.model_copy(update={"split": "heldout"})
    return source


def is_hub(source: SourceSection) -> bool:
    """Whether a source is a data set of the hub."""
    return not source.path.startswith(BUILTIN) and not is_address(source.path) and not _is_local(source.path)


def local_files(source: SourceSection) -> list[Path] | None:
    """The files of a local source; None for an address, a built-in or a hub data set.

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
    if path.startswith(BUILTIN) or is_address(path):
        return False
    return (
        Path(path).exists()
        or path.startswith(("./", "../", "/", "~"))
        or path.lower().endswith(SUFFIXES)
        or glob.escape(path) != path
        or not is_hub_id(path)
    )


def _read_builtin(source: SourceSection) -> Generator[RawRow]:
    if source.path != f"{BUILTIN}chat":
        raise DataError("no such built-in data set", where=source.path, fix="There is one: builtin:chat.")
    split = source.split or "train"
    if split not in ("train", "heldout"):
        raise DataError(f"no split {split!r}", where=source.path, fix="Its splits are train and heldout.")
    rows = generate("train" if split == "train" else "heldout")
    for number, row in enumerate(rows, start=1):
        yield RawRow(f"{source.path}[{split}]:{number}", row, number / len(rows))
