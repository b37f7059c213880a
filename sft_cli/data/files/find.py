"""Which files a path of the recipe stands for."""

from __future__ import annotations

import glob
from pathlib import Path

from sft_cli.data.files.compression import COMPRESSIONS
from sft_cli.errors import DataError
from sft_cli.recipe.paths import RELATIVE_TO

SUFFIXES = (*(f"{kind}{end}" for kind in (".jsonl", ".json", ".csv") for end in ("", *COMPRESSIONS)), ".parquet")


def find_files(path: str) -> list[Path]:
    """The files that a path, a folder (with its subfolders) or a glob stands for, sorted.

    Raises:
        DataError: nothing is there, or a file that was named is of no supported kind.
    """
    place = Path(path)
    if place.is_dir():
        files = sorted(
            file for file in place.rglob("*") if file.is_file() and is_supported(file.name) and not _hidden(file, place)
        )
        if not files:
            raise DataError("the folder holds no data file", where=path, fix=f"Supported: {', '.join(SUFFIXES)}.")
        return files
    if place.exists():
        files = [place]
    else:
        files = sorted(Path(match) for match in glob.glob(path, recursive=True) if Path(match).is_file())
    if not files:
        is_glob = glob.escape(path) != path
        what = "no file matches the pattern" if is_glob else "no such file or folder"
        raise DataError(what, where=path, fix=RELATIVE_TO)
    for file in files:
        if not file.is_file():
            raise DataError("not a regular file", where=str(file), fix="Write the data to a file first.")
        require_supported(file.name, str(file))
    return files


def is_supported(name: str) -> bool:
    """Whether a file of this name holds rows that can be read."""
    return name.lower().endswith(SUFFIXES)


def require_supported(name: str, where: str) -> None:
    """Raises DataError where a file that was named can't be read."""
    if not is_supported(name):
        raise DataError("not a supported kind of data file", where=where, fix=f"Supported: {', '.join(SUFFIXES)}.")


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)
