"""How long ranks wait for each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _set_pg_timeout

LONG_SECONDS = 1800.0
"""Where one rank may have much to do alone: compiling before the first step, writing an export."""
LEAST_SECONDS = 120.0
"""Once steps run, a rank that is silent for this long hangs: longer than a file system or a network usually stalls."""
_STEPS = 20

Item = TypeVar("Item")


def set_patience(mesh: DeviceMesh, seconds: float) -> None:
    """From now on a collective of training fails after so many seconds, on every rank that waits in it.

    Not those of a group that is nobody's axis, as the one that writes checkpoints.
    """
    default = dist.distributed_c10d._get_default_group()
    for group in {default, *mesh.get_all_groups()}:
        _set_pg_timeout(timedelta(seconds=seconds), group)


def impatient(
    steps: Iterable[Item], set_seconds: Callable[[float], None], finish_step: Callable[[], None]
) -> Iterator[Item]:
    """The same steps. When the first has been taken, patience becomes that of twenty like it.

    Args:
        finish_step: waits until the device has computed it: the host has only launched it, in less time.
    """
    begin = time.monotonic()
    for number, step in enumerate(steps):
        yield step
        if number == 0:
            finish_step()
            set_seconds(max(LEAST_SECONDS, _STEPS * (time.monotonic() - begin)))
