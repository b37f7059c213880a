"""Everything here needs an NVIDIA GPU and flash-linear-attention; elsewhere it is skipped, and says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.ports import lone_rank_environment
from torch.distributed.device_mesh import DeviceMesh

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(scope="session")
def mesh() -> Iterator[DeviceMesh]:
    """One rank on one GPU, as a worker has it."""
    from sft_cli.parallel.device import local_device
    from sft_cli.parallel.mesh import process_group

    os.environ |= lone_rank_environment()
    with process_group(local_device("cuda")) as mesh:
        yield mesh


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """For a test that lets torch raise where the host would wait for the device."""
    yield
    torch.cuda.set_sync_debug_mode("default")
