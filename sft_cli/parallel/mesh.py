"""The process group and the device mesh that FSDP2 shards over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


@contextmanager
def process_group(device_type: str) -> Iterator[DeviceMesh]:
    """Joins the ranks that torchrun started and yields a mesh with one axis, `shard`; leaves the group at the end.

    Args:
        device_type: `cpu` (gloo) or `cuda` (NCCL).
    """
    dist.init_process_group("gloo" if device_type == "cpu" else "nccl")
    try:
        yield init_device_mesh(device_type, (dist.get_world_size(),), mesh_dim_names=("shard",))
    finally:
        dist.destroy_process_group()


def local_device(device_type: str) -> torch.device:
    """The device of this rank."""
    if device_type == "cpu":
        return torch.device("cpu")
    device = torch.device(device_type, int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device
