"""Whether a checkpoint is what was written. No torch: also for commands that answer at once."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sft_cli.checkpoint.layout import complete_checkpoints
from sft_cli.checkpoint.manifest import MANIFEST, FileFacts, file_facts, read_manifest
from sft_cli.errors import CheckpointError

_READERS = 4
"""Files read at a time; hashing leaves Python's lock, and network disks are faster with several readers."""


def verify(checkpoint: Path) -> None:
    """Reads every file once and compares it with the manifest.

    Raises:
        CheckpointError: a file is missing, cut or changed; the first such file is named, and an older checkpoint.
    """
    require_sizes(checkpoint)
    require_checksums(checkpoint)


def require_sizes(checkpoint: Path) -> None:
    """What a look at names and sizes shows; reads no tensor.

    Raises:
        CheckpointError: as `verify`.
    """
    for name, facts in read_manifest(checkpoint).items():
        path = checkpoint / name
        try:
            size = path.stat().st_size
        except FileNotFoundError as error:
            raise damaged(checkpoint, name, "is missing") from error
        except OSError as error:
            raise damaged(checkpoint, name, f"can't be read: {error.strerror}") from error
        if size != facts.size:
            raise damaged(checkpoint, name, f"has {size:,} bytes, and had {facts.size:,} when it was written")


def require_checksums(checkpoint: Path, *, share: int = 0, shares: int = 1) -> None:
    """Reads the files of one share, the largest dealt out first.

    Args:
        share: which of `shares` processes this is; together they read each file once.

    Raises:
        CheckpointError: as `verify`.
    """
    files = sorted(read_manifest(checkpoint).items(), key=lambda item: (-item[1].size, item[0]))
    with ThreadPoolExecutor(_READERS, thread_name_prefix="verify") as pool:
        for name, problem in pool.map(lambda item: (item[0], _problem(checkpoint, *item)), files[share::shares]):
            if problem is not None:
                raise damaged(checkpoint, name, problem)


def damaged(checkpoint: Path, name: str, how: str) -> CheckpointError:
    """The error that names a file, and what else there is to go on from."""
    older = [path for _, path in complete_checkpoints(checkpoint.parent) if path.name < checkpoint.name]
    return CheckpointError(
        f"the checkpoint is damaged: {name} {how}", where=str(checkpoint / name), fix=_remedy(reversed(older))
    )


def _problem(checkpoint: Path, name: str, expected: FileFacts) -> str | None:
    try:
        found = file_facts(checkpoint / name)
    except OSError as error:
        return f"can't be read: {error.strerror}"
    return None if found == expected else f"is not what was written: its checksum is another than in {MANIFEST}"


def _remedy(older: Iterable[Path]) -> str:
    for path in older:
        return f"The one before it is taken with --resume-from {path}"
    return "There is no older one beside it: bring the file back from a copy, or start anew with --overwrite."
