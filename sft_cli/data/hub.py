"""Rows of a data set on the Hugging Face hub, or of its copy in the local cache."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING

from sft_cli.data.files import without_nulls
from sft_cli.data.hub_copies import DEFAULT_SUBSET, Copy, cache_folder, copies
from sft_cli.data.hub_errors import fetching
from sft_cli.data.hub_stream import stream_hub
from sft_cli.data.raw import RawRow
from sft_cli.errors import DataError
from sft_cli.plan import hub
from sft_cli.plan.hub_refusals import failed_download, first_line, hub_errors, not_at_hand
from sft_cli.recipe.schema import SourceSection

if TYPE_CHECKING:
    import datasets

_LISTED = re.compile(r"\[([^\]]*)\]")
_SPLIT_NAMES = re.compile(r"(?:^|\+)\s*(\w+(?:\.\w+)*)")
"""`train` in `train[:10%]`, `train` and `test` in `train+test`."""


def open_hub(source: SourceSection, *, streaming: bool = False) -> Callable[[], Generator[RawRow]]:
    """Find a hub data set and check what is asked of it; the rows are downloaded (once) when they are read.

    Args:
        source: its revision is a commit where `pin_sources` has been called; None is the main branch.
        streaming: where no copy is here, read rows from the hub as they come and make none.

    Returns:
        What reads the rows. It raises a DataError where they can't be fetched, and OSError on a full disk.

    Raises:
        DataError: it does not exist, is gated, has no such subset or split, or can't be reached.
    """
    split = source.split or "train"
    repo = hub.Repo("dataset", source.path, source.revision, source.path)
    copy = _copy_of(source)
    commit = None if copy is not None else _listed_commit(repo)
    # Or the library tells a server of Amazon's which data set is loaded, and waits for it.
    os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "false")
    import datasets  # takes seconds: after the look-up, which may be the end of it

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    if copy is not None:
        builder = _copied(source, copy)
    else:
        assert commit is not None, "what has no copy was looked up"
        builder = _builder(source, repo, commit)
    _require_split(builder, source, split)

    if streaming and copy is None:
        return partial(stream_hub, builder, repo, split)

    def rows() -> Generator[RawRow]:
        if copy is None:
            with fetching(repo):
                builder.download_and_prepare()
        table = builder.as_dataset(split=split)
        for number, row in enumerate(table, start=1):
            yield RawRow(f"{source.path}[{split}]:{number}", without_nulls(row), number / len(table))

    return rows


def _copy_of(source: SourceSection) -> Copy | None:
    """The copy to read without asking anyone; None where it isn't known which commit or subset is meant."""
    subset = source.subset or DEFAULT_SUBSET
    found = [copy for copy in copies(source.path) if (copy.commit, copy.subset) == (source.revision, subset)]
    return found[-1] if found else None


def _listed_commit(repo: hub.Repo) -> str:
    """Asked before the library, which answers a hub out of reach only after a minute of retries."""
    try:
        return hub.look_up(repo).commit
    except hub.Unreachable as reason:
        raise not_at_hand(reason, repo.kind, repo.id, repo.where) from reason


def _copied(source: SourceSection, copy: Copy) -> datasets.DatasetBuilder:
    from datasets.packaged_modules.cache.cache import Cache

    return Cache(
        cache_dir=str(cache_folder()),
        dataset_name=source.path.rpartition("/")[2],
        repo_id=source.path,
        config_name=copy.subset,
        version=copy.version,
        hash=copy.commit,
    )


def _builder(source: SourceSection, repo: hub.Repo, commit: str) -> datasets.DatasetBuilder:
    """What knows the data set's subsets and splits; it has downloaded descriptions, no rows."""
    import datasets

    try:
        builder = datasets.load_dataset_builder(
            source.path, source.subset, revision=commit, cache_dir=str(cache_folder())
        )
    except FileNotFoundError as error:  # the library has two kinds of it: no files, and none that it knows
        raise DataError(
            f"the data set holds no files that can be read: {first_line(error)}",
            where=source.path,
            fix="Name one with Parquet, JSON or CSV files.",
        ) from error
    except RuntimeError as error:
        raise DataError(
            f"the data set can't be read: {first_line(error)}",
            where=source.path,
            fix="Name one with Parquet, JSON or CSV files; many have them at `revision: refs/convert/parquet`.",
        ) from error
    except ValueError as error:
        names = _LISTED.search(str(error))
        if names is None:
            raise DataError(
                f"the data set can't be read: {first_line(error)}", where=source.path, fix="See its page on the hub."
            ) from error
        what = "the data set has several subsets" if source.subset is None else f"no subset {source.subset}"
        raise DataError(
            what, where=source.path, fix=f"Set the source's subset to one of: {_plain(names[1])}."
        ) from error
    except hub_errors() as error:
        raise failed_download(error, repo.kind, repo.id, repo.revision, repo.where) from error
    if builder.hash != commit:
        # The library takes whatever copy it has when something goes wrong on the way.
        raise DataError(
            f"the description of {source.path} at {commit[:12]} could not be downloaded",
            where=source.path,
            fix="Start it again; check the connection.",
        )
    return builder


def _require_split(builder: datasets.DatasetBuilder, source: SourceSection, split: str) -> None:
    """Before rows are downloaded: the library would look at the split's name after that."""
    import datasets

    try:
        datasets.ReadInstruction.from_spec(split)
    except ValueError as error:
        raise DataError(
            f"the split {split} can't be read: {first_line(error)}",
            where=source.path,
            fix="Write it as `train`, `train[:10%]`, `train[:1000]` or `train+test`.",
        ) from error
    known = [str(name) for name in builder.info.splits or builder.config.data_files or ()]
    missing = [name for name in _SPLIT_NAMES.findall(split) if name not in (*known, "all")]
    if known and missing:
        subset = f" in subset {source.subset}" if source.subset is not None else ""
        raise DataError(
            f"no split {missing[0]}{subset}",
            where=source.path,
            fix=f"Set the source's split to one of: {', '.join(known)}.",
        )


def _plain(names: str) -> str:
    return names.replace("'", "")
