"""The process group and the device mesh that FSDP2 shards over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


@contextmanager
def process_group(device: torch.device, *, replicas: int = 1) -> Iterator[DeviceMesh]:
    """Joins the ranks that torchrun started and yields their mesh, see `build_mesh`; leaves the group at the end.

    A rank that fails does not: NCCL's leave-taking takes all ranks of the machine, and the others wait for this one, so
    its error would not be told before NCCL's watchdog ends the process. The end of the process closes its connections.

    On GPUs tensors on the device go through NCCL and those on the host through gloo: what ranks have to agree on
    before a step does not wait for the device.
    """
    if device.type == "cpu":
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    yield build_mesh(device.type, replicas=replicas)
    dist.destroy_process_group()


def build_mesh(device_type: str, *, replicas: int = 1) -> DeviceMesh:
    """All ranks as one axis `shard`, or as `replicate` times `shard`, where neighbours share one copy of the model.

    Neighbours are the ranks of one node, between which gathering is cheap; replicas only sum gradients.
    """
    ranks = dist.get_world_size()
    if replicas == 1:
        return init_device_mesh(device_type, (ranks,), mesh_dim_names=("shard",))
    return init_device_mesh(device_type, (replicas, ranks // replicas), mesh_dim_names=("replicate", "shard"))
