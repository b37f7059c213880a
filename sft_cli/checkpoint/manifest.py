"""What a checkpoint consists of: every file with its size and checksum, in a file of its own, written last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import xxhash

from sft_cli.errors import CheckpointError

MANIFEST = "manifest.json"
_BLOCK_BYTES = 4 * 2**20


@dataclass(frozen=True)
class FileFacts:
    size: int
    """In bytes."""
    xxh3: str
    """XXH3 of 128 bits, as hexadecimal digits: several gigabytes a second and core, where a disk gives one or two."""


Manifest = Mapping[str, FileFacts]
"""File name in the checkpoint -> what it has to be."""


def file_facts(path: Path) -> FileFacts:
    """Reads the whole file."""
    digest = xxhash.xxh3_128()
    size = 0
    with path.open("rb", buffering=0) as file:
        block = bytearray(_BLOCK_BYTES)
        while count := file.readinto(block):
            digest.update(memoryview(block)[:count])
            size += count
    return FileFacts(size, digest.hexdigest())


def write_manifest(checkpoint: Path, files: Manifest) -> None:
    text = json.dumps({name: asdict(files[name]) for name in sorted(files)}, indent=2)
    (checkpoint / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(checkpoint: Path) -> Manifest:
    """
    Raises:
        CheckpointError: there is none, or it can't be read.
    """
    path = checkpoint / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {name: FileFacts(**facts) for name, facts in found.items()}
    except FileNotFoundError as error:
        what = "not a checkpoint: there is no such folder"
        if checkpoint.is_dir():
            what = f"not a whole checkpoint of sftune: it has no {MANIFEST}"
        raise CheckpointError(
            what, where=str(checkpoint), fix="Name a folder like checkpoints/step-00000200."
        ) from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"can't be read: {error}", where=str(path)) from error
