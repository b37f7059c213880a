"""A GPU that is out of memory, in the terms of the recipe."""

from __future__ import annotations

import re

import torch

from sft_cli.errors import OutOfMemoryError
from sft_cli.plan.plan import Plan

TEXTS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""How libraries that ask the driver themselves (Triton, cuBLAS, NCCL) say it, in errors of many classes."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether the GPU's memory did not suffice."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in TEXTS)


def explain(error: RuntimeError, plan: Plan) -> OutOfMemoryError:
    """What did not fit, and what to change first."""
    request = re.search(r"Tried to allocate [\d.]+ \w+", str(error))
    estimate = f"the plan estimated {plan.memory_gib.total:.1f} GiB"
    if plan.gpu_memory_gib is not None:
        estimate += f" of {plan.gpu_memory_gib:.1f}"
    tried = f" ({request[0]})" if request else ""
    return OutOfMemoryError(
        f"the GPU is out of memory{tried}; {estimate}", where="batching.tokens", fix=" ".join(_remedies(plan))
    )


def _remedies(plan: Plan) -> list[str]:
    recipe = plan.recipe
    checkpointing = recipe.sharding.activation_checkpointing
    remedies = [f"Lower batching.tokens ({recipe.batching.tokens:,})."]
    if checkpointing.mode == "none" or checkpointing.layers != "all":
        remedies.insert(0, "Set sharding.activation_checkpointing: {mode: full, layers: all}.")
    if recipe.kernels.loss == "torch":
        remedies.insert(0, "Set kernels.loss: chunked.")
    if recipe.sharding.backend == "fsdp2":
        remedies.append("Or spread the model over more GPUs.")
    remedies.append("Other processes on the same GPU count too: see nvidia-smi.")
    return remedies
