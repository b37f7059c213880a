"""Python's compiled modules, kept where the environment keeps none.

A run imports some thousand modules, in each of its processes. Where packages were installed without their bytecode (uv
does so unless asked, `pip install --no-compile`) and none may be written beside them (PYTHONDONTWRITEBYTECODE in a
container, folders that belong to somebody else), every process compiles them again: a worker on a core of an AMD EPYC
was ready in 22 s in place of 8. So then they are kept in a folder of ours.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from sft_cli.launch.caches import cache_root

_PACKAGES = ("torch", "triton", "transformers", "tilelang", "fla")
"""The largest that a worker imports, as far as they are installed."""


def keep_bytecode(packages: Iterable[str] = _PACKAGES) -> None:
    """Of this process from now on, and of all that it starts."""
    kept = variables(os.environ, packages)
    os.environ.update(kept)
    if kept:
        sys.pycache_prefix, sys.dont_write_bytecode = kept["PYTHONPYCACHEPREFIX"], False


def variables(environ: Mapping[str, str], packages: Iterable[str]) -> dict[str, str]:
    """What keeps it; nothing where Python finds or keeps its own.

    One who has chosen a folder (PYTHONPYCACHEPREFIX) is left with it.
    """
    if environ.get("PYTHONPYCACHEPREFIX") or not any(_is_compiled_each_time(one, environ) for one in packages):
        return {}
    # An empty PYTHONDONTWRITEBYTECODE is none.
    return {"PYTHONPYCACHEPREFIX": str(cache_root(environ) / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}


def _is_compiled_each_time(package: str, environ: Mapping[str, str]) -> bool:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or not spec.has_location:
        return False
    compiled = Path(importlib.util.cache_from_source(spec.origin))
    if compiled.exists():
        return False
    folder = compiled.parent if compiled.parent.exists() else compiled.parent.parent
    return bool(environ.get("PYTHONDONTWRITEBYTECODE")) or not os.access(folder, os.W_OK)
