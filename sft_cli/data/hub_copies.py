"""Copies of hub data sets that the `datasets` library has made on this disk, by commit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sft_cli.plan import hub

DEFAULT_SUBSET = "default"
"""What `datasets` calls the subset of a data set that names none, and the first choice of one that names several."""


@dataclass(frozen=True)
class Copy:
    """`<cache>/<owner>___<name>/<subset>/<version>/<commit>/`, complete: it gets its name when all of it is there."""

    folder: Path

    @property
    def subset(self) -> str:
        return self.folder.parts[-3]

    @property
    def version(self) -> str:
        return self.folder.parts[-2]

    @property
    def commit(self) -> str:
        return self.folder.parts[-1]


def copies(hub_id: str) -> list[Copy]:
    """All copies of a data set, the one made last at the end. Imports nothing that takes time."""
    found = [folder for root in _roots(hub_id) for folder in root.glob("*/*/*") if hub.is_commit(folder.name)]
    return [Copy(folder) for folder in sorted(found, key=lambda folder: folder.stat().st_mtime) if folder.is_dir()]


def prepared_commits(hub_id: str, subset: str | None) -> list[str]:
    """The commits that a subset (None: the default one) was copied at, the last copy at the end."""
    return [copy.commit for copy in copies(hub_id) if copy.subset == (subset or DEFAULT_SUBSET)]


def cache_folder() -> Path:
    """Where `datasets` keeps its copies."""
    from huggingface_hub import constants

    configured = os.environ.get("HF_DATASETS_CACHE")
    return Path(configured).expanduser() if configured else Path(constants.HF_HOME, "datasets")


def _roots(hub_id: str) -> Iterator[Path]:
    """The folders of a data set: `datasets` writes `owner/UltraChat` as `owner___ultra_chat`."""
    wanted = _letters(hub_id.replace("/", "___"))
    if cache_folder().is_dir():
        yield from (folder for folder in cache_folder().iterdir() if _letters(folder.name) == wanted)


def _letters(name: str) -> str:
    return name.replace("_", "").lower()
