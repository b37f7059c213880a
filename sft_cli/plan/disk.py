"""Room on the disk: what a run will write, by arithmetic, and whether there is as much."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from sft_cli.errors import CheckpointError
from sft_cli.plan.model_types import stored_dtype
from sft_cli.plan.plan import ModelFacts, Plan
from sft_cli.plan.safetensors_header import stored_tensors

_GIB, _MIB = 2**30, 2**20
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def run_bytes(plan: Plan) -> dict[str, int]:
    """What a run leaves on the disk, by what it is; the small files beside weights are not counted.

    Raises:
        ModelError: the source's weights are damaged.
    """
    checkpoint = plan.recipe.checkpoint
    return {"export": export_bytes(plan.model)} if checkpoint.enabled and checkpoint.export else {}


def export_bytes(model: ModelFacts) -> int:
    """Bytes of an export's weights: as many as its source's; drawn ones in the dtype of the config.

    Raises:
        ModelError: the source's weights are damaged.
    """
    if model.weights == "pretrained" and model.folder is not None:
        return sum(tensor.size_bytes for tensor in stored_tensors(Path(model.folder)).values())
    return model.parameters * _ITEM_BYTES[stored_dtype(model.config)]


def require_room(folder: Path, wanted: Mapping[str, int], *, freed: int = 0, fix: str) -> None:
    """CheckpointError where the disk of a folder, which need not be there yet, has less room than is wanted.

    Args:
        wanted: bytes by what they are for.
        freed: bytes that are there now and will be gone by then.
    """
    free, total = free_bytes(folder) + freed, sum(wanted.values())
    if total > free:
        parts = ", ".join(f"{what} {size_text(size)}" for what, size in wanted.items())
        what = f"the disk has {size_text(free)} free, and {size_text(total)} are needed ({parts})"
        raise CheckpointError(what, where=str(folder), fix=fix)


def free_bytes(folder: Path) -> int:
    """Of the disk of a folder, which need not be there yet."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def folder_bytes(folder: Path) -> int:
    """Of all files below a folder, or of a file; 0 where there is neither."""
    if not folder.is_dir():
        return folder.stat().st_size if folder.is_file() else 0
    return sum(os.lstat(os.path.join(parent, name)).st_size for parent, _, names in os.walk(folder) for name in names)


def size_text(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:,.1f} GiB" if size_bytes >= _GIB else f"{size_bytes / _MIB:.1f} MiB"
