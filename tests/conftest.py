"""Fixtures that more than one kind of test uses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["support.no_network"]

# The same examples every time: what CI finds, anyone can repeat. `--hypothesis-profile=default` looks further.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

# Before torch starts: tests run side by side, and threads that fight for two cores are slower than none.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def lone_rank(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone, for what speaks to the others."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
