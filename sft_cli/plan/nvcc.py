"""Whether CUDA's compiler is at hand. TileLang compiles with it, and pip does not bring it along."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

INSTALL = "pip install 'tilelang[nvcc]>=0.1.15'"
"""NVIDIA's compiler as a wheel, for CUDA 13; those for CUDA 12 have no nvcc in them."""


def has_nvcc(environment: Mapping[str, str] = os.environ) -> bool:
    """Looks where TileLang 0.1.15 and flash-linear-attention 0.6 look."""
    return any(path.is_file() for path in _places(environment))


def _places(environment: Mapping[str, str]) -> Iterator[Path]:
    home = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    if home:
        yield Path(home) / "bin" / "nvcc"
    found = shutil.which("nvcc", path=environment.get("PATH"))
    if found is not None:
        yield Path(found)
    with suppress(PackageNotFoundError):
        yield from (Path(str(file.locate())) for file in files("nvidia-cuda-nvcc") or () if file.name == "nvcc")
    yield Path("/usr/local/cuda/bin/nvcc")
