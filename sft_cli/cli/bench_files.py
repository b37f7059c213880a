"""Files of `sftune bench`: read and checked before the first rung runs, written after each, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from sft_cli.cli.bench_document import Document
from sft_cli.errors import UsageError
from sft_cli.plan.synced import replace_text

_COMPARED = {
    "device": "the device",
    "ranks": "the number of processes",
    "model": "the model",
    "layers": "--layers",
    "data": "the data",
}


def read_json(path: Path, keys: Sequence[str], option: str) -> Document:
    """A file that an earlier bench wrote.

    Args:
        keys: that it has, as a file of that kind.
        option: which names it, for errors.

    Raises:
        UsageError: it isn't there, or is something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"can't be read: {error.strerror}", where=f"{option} {path}", fix=f"Give what {_SOURCE[option]} wrote."
        ) from error
    except ValueError:
        content = None
    if not isinstance(content, dict) or not set(keys) <= content.keys():
        raise UsageError("no bench wrote this", where=f"{option} {path}", fix=f"Give what {_SOURCE[option]} wrote.")
    return content


_SOURCE = {"--against": "`sftune bench --save`", "--append": "`sftune bench --append`"}


def require_writable(path: Path, option: str) -> None:
    """Passes a file that can be written when the numbers are there.

    Raises:
        UsageError: it can't.
    """
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError("can't be written", where=f"{option} {path}", fix="Name a file in a folder of yours.")


def require_same(setting: Document, earlier: Document, place: str) -> None:
    """Passes a bench whose numbers may stand beside earlier ones.

    Args:
        setting, earlier: see `bench_document.setting`; a None is not known, but for `layers`.
        place: of the earlier ones.

    Raises:
        UsageError: it is another model, or another machine.
    """
    for key, name in _COMPARED.items():
        before, now = earlier.get(key), setting.get(key)
        if before != now and (key == "layers" or None not in (before, now)):
            raise UsageError(
                f"{name} was another: {before} then, {now} now; numbers of the two say nothing about each other",
                where=place,
                fix="Name another file, or bench the same again.",
            )


def write_json(path: Path, content: Document) -> None:
    """Replaces a file; a reader, or a bench that is killed, never sees half of it."""
    replace_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
