"""The device of a rank, and what of it telemetry wants to know."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from sft_cli.errors import UsageError

_GIB = 2**30
_GEMM_WIDTH = 8192


def local_device(device_type: str) -> torch.device:
    """The device of this rank; a GPU becomes torch's current one.

    Raises:
        UsageError: the plan wants a GPU, and this torch can't use it; or this machine has more ranks than GPUs.
    """
    if device_type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        build = "has no CUDA in it" if torch.version.cuda is None else f"(CUDA {torch.version.cuda}) can't use it"
        raise UsageError(
            f"the driver shows a GPU, but torch {torch.__version__} {build}",
            fix="Install a torch for this driver (pytorch.org/get-started), or train on the CPU: CUDA_VISIBLE_DEVICES=",
        )
    device = torch.device("cuda", _gpu_number(int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device


def _gpu_number(local_rank: int, visible: int) -> int:
    if local_rank < visible:
        return local_rank
    if visible == 1 and "SLURM_LOCALID" in os.environ:
        return 0  # `srun --gpus-per-task=1` shows each task its own GPU alone
    gpus = "1 GPU is" if visible == 1 else f"{visible} GPUs are"
    raise UsageError(
        f"process {local_rank} of this machine (counted from 0) has no GPU: {gpus} visible",
        fix="Start as many processes as there are GPUs; CUDA_VISIBLE_DEVICES may hide others.",
    )


def peak_memory_reader(device: torch.device) -> Callable[[], float] | None:
    """GiB of tensors at the worst moment of this process so far; None for a CPU."""
    if device.type == "cpu":
        return None
    return lambda: _allocator(device)["allocated_bytes"]["all"]["peak"] / _GIB


def peak_reserved_gib(device: torch.device) -> float | None:
    """GiB that the allocator had from the driver at most, what lay unused between tensors included; None for a CPU."""
    return None if device.type == "cpu" else _allocator(device)["reserved_bytes"]["all"]["peak"] / _GIB


def allocator_retries(device: torch.device) -> int | None:
    """How often the allocator had to give unused memory back to the driver to find some: each waits for the GPU.
    None for a CPU."""
    return None if device.type == "cpu" else int(_allocator(device)["num_alloc_retries"])


def _allocator(device: torch.device) -> dict[str, Any]:
    # `memory_stats`, and `max_memory_allocated` by it, sorts hundreds of names for every number.
    return torch.cuda.memory_stats_as_nested_dict(device)


def wait_for(device: torch.device) -> None:
    """Until all that was launched is computed; at once on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gemm_tflops(device: torch.device, dtype: torch.dtype) -> float | None:
    """What one large matrix product reaches here, TFLOP/s: the most that a step's could. None for a CPU.

    A square of 8,192, the best of ten after two that are not counted; about a tenth of a second.
    """
    if device.type == "cpu":
        return None
    a, b = (torch.randn(_GEMM_WIDTH, _GEMM_WIDTH, device=device, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        a @ b
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return 2 * _GEMM_WIDTH**3 / min(times[2:]) / 1e12


def device_uuid(device: torch.device) -> str | None:
    """As CUDA has it, the same kind of number for a GPU and for a slice (MIG) of one; None for a CPU."""
    return None if device.type == "cpu" else str(torch.cuda.get_device_properties(device).uuid)
