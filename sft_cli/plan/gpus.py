"""GPUs that `sftune plan --gpu NAME` knows, and the peak that MFU is measured against."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from sft_cli.errors import UsageError


@dataclass(frozen=True)
class Gpu:
    key: str
    """What `--gpu` takes."""
    name: str
    """As the driver gives it."""
    memory_gib: float
    """As the driver reports it: a little under the data sheet's figure."""
    peak_bf16_tflops: float
    """Dense bfloat16 with float32 accumulation; data sheets print twice that, for 2:4 sparsity."""
    compute_capability: tuple[int, int]
    """developer.nvidia.com/cuda-gpus."""


# Memory: `memory.total` of nvidia-smi for that card, in MiB. Peaks: NVIDIA's data sheets, as torchtitan's
# `get_peak_flops` (torchtitan/tools/utils.py) has them, too.
GPUS = (
    # nvidia.com/en-us/data-center/h200; field notes: "MFU of 989".
    Gpu("h200", "NVIDIA H200", 143771 / 1024, 989.0, (9, 0)),
    # nvidia.com/en-us/data-center/h100, the SXM card.
    Gpu("h100", "NVIDIA H100 80GB HBM3", 81559 / 1024, 989.0, (9, 0)),
    # nvidia.com/en-us/data-center/a100.
    Gpu("a100-80g", "NVIDIA A100-SXM4-80GB", 81920 / 1024, 312.0, (8, 0)),
    Gpu("a100-40g", "NVIDIA A100-SXM4-40GB", 40960 / 1024, 312.0, (8, 0)),
    # resources.nvidia.com/en-us-l40s/l40s-datasheet-28413.
    Gpu("l40s", "NVIDIA L40S", 46068 / 1024, 362.0, (8, 9)),
    # NVIDIA Ada GPU Architecture whitepaper, appendix A: 165.2 with float32 accumulation.
    Gpu("rtx4090", "NVIDIA GeForce RTX 4090", 24564 / 1024, 165.2, (8, 9)),
    # nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703.
    Gpu("b200", "NVIDIA B200", 183359 / 1024, 2250.0, (10, 0)),
)


def find_gpu(key: str) -> Gpu:
    """The GPU that `--gpu` names, whatever the case; UsageError with the known names for an unknown one."""
    known = {gpu.key: gpu for gpu in GPUS}
    gpu = known.get(key.strip().lower())
    if gpu is None:
        close = difflib.get_close_matches(key.lower(), known, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise UsageError(f"no GPU called {key!r} is known", where="--gpu", fix=f"{hint}Known: {', '.join(known)}.")
    return gpu


def peak_bf16_tflops(name: str) -> float | None:
    """Dense bfloat16 peak in TFLOP/s of a GPU by its driver's name; None for one that the table lacks."""
    for gpu in GPUS:
        if name == gpu.name:
            return gpu.peak_bf16_tflops
    return None
