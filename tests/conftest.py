"""Fixtures that more than one kind of test uses."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from support.sftune import CACHE_VARIABLE

pytest_plugins = ["support.no_network"]

# The same examples every time: what CI finds, anyone can repeat. `--hypothesis-profile=default` looks further.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

# Before torch starts: tests run side by side, and threads that fight for two cores are slower than none.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    if CACHE_VARIABLE not in os.environ:  # pytest-xdist's workers have it from the process that started them
        os.environ[CACHE_VARIABLE] = tempfile.mkdtemp(prefix="sftune-tests-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(CACHE_VARIABLE)))


@pytest.fixture
def lone_rank(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone, for what speaks to the others."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
