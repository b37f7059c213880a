"""Folders for what takes time to make and outlives a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_root(environ: Mapping[str, str]) -> Path:
    """The folder for what can be made again, but takes time."""
    return Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache") / "sftune"


def kernel_caches(base: Mapping[str, str]) -> dict[str, str]:
    """Compiled kernels in one folder that outlives the run and can be mounted; minutes of compilation are in it.

    Inductor's own default is a temporary folder, gone with the container or the next boot.
    """
    root = cache_root(base) / "kernels"
    return {
        "TRITON_CACHE_DIR": str(root / "triton"),
        "TILELANG_CACHE_DIR": str(root / "tilelang"),
        "TORCHINDUCTOR_CACHE_DIR": str(root / "inductor"),
    }
