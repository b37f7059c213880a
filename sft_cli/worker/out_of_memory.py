"""A GPU that is out of memory, in the terms of the recipe."""

from __future__ import annotations

import re

import torch

from sft_cli.errors import OutOfMemoryError
from sft_cli.plan.fit import find_fit
from sft_cli.plan.memory import GIB
from sft_cli.plan.plan import Plan
from sft_cli.worker.phase import find_phase

TEXTS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""How libraries that ask the driver themselves (Triton, cuBLAS, NCCL) say it, in errors of many classes."""

_REMEDIES = _CONSUMERS = 3


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether the GPU's memory did not suffice."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in TEXTS)


def explain(error: RuntimeError, plan: Plan) -> OutOfMemoryError:
    """What did not fit and when, what takes most, and the changes of the recipe that save most."""
    request = re.search(r"Tried to allocate [\d.]+ \w+", str(error))
    tried = f" ({request[0]})" if request else ""
    facts = [f"the GPU is out of memory {find_phase(error)}{tried}", *_tensors(), _estimate(plan)]
    savings = find_fit(plan).changes[:_REMEDIES]
    remedies = [f"{saving.text()} saves {saving.saves_gib:.1f} GiB ({saving.costs})." for saving in savings]
    if plan.recipe.sharding.backend == "fsdp2":
        remedies.append("More GPUs share parameters, gradients and optimizer.")
    remedies.append("Other processes on the same GPU count too: see nvidia-smi.")
    where = next(iter(savings[0].keys)) if savings else "batching.tokens"
    return OutOfMemoryError("; ".join(facts), where=where, fix="\n  ".join(remedies))


def _estimate(plan: Plan) -> str:
    """The plan's sum and its largest parts."""
    parts = plan.memory_gib.model_dump(exclude={"total"})
    largest = sorted(parts, key=lambda part: -parts[part])[:_CONSUMERS]
    estimate = f"the plan estimated {plan.memory_gib.total:.1f} GiB"
    if plan.gpu_memory_gib is not None:
        estimate += f" of {plan.gpu_memory_gib:.1f}"
    return f"{estimate}, most of it {', '.join(f'{part} {parts[part]:.1f}' for part in largest)}"


def _tensors() -> list[str]:
    """What torch's own counters say: the driver is not asked, which may be beyond answering."""
    if not torch.cuda.is_initialized():
        return []
    held, reserved = torch.cuda.memory_allocated() / GIB, torch.cuda.memory_reserved() / GIB
    return [f"tensors hold {held:.1f} GiB, and {reserved - held:.1f} more lie unused in torch's allocator"]
