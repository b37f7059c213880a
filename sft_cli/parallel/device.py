"""The device of a rank, and what of it telemetry wants to know."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from sft_cli.errors import UsageError

_GIB = 2**30


def local_device(device_type: str) -> torch.device:
    """The device of this rank; a GPU becomes torch's current one.

    Raises:
        UsageError: the plan wants a GPU, and this torch can't use it.
    """
    if device_type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        build = "has no CUDA in it" if torch.version.cuda is None else f"(CUDA {torch.version.cuda}) can't use it"
        raise UsageError(
            f"the driver shows a GPU, but torch {torch.__version__} {build}",
            fix="Install a torch for this driver (pytorch.org/get-started), or train on the CPU: CUDA_VISIBLE_DEVICES=",
        )
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def peak_memory_reader(device: torch.device) -> Callable[[], float] | None:
    """GiB of tensors at the worst moment of this process so far; None for a CPU."""
    if device.type == "cpu":
        return None
    return lambda: torch.cuda.max_memory_allocated(device) / _GIB


def device_uuid(device: torch.device) -> str | None:
    """As the driver gives it, `GPU-...`; None for a CPU."""
    return None if device.type == "cpu" else f"GPU-{torch.cuda.get_device_properties(device).uuid}"
