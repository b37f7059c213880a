from __future__ import annotations

import pytest
import torch

from sft_cli.plan.hardware import Hardware
from sft_cli.plan.model_facts import find_model
from sft_cli.plan.resolve import resolve
from sft_cli.recipe.schema import Recipe
from sft_cli.worker.out_of_memory import explain, is_out_of_memory

TORCH_SAYS = (
    "CUDA out of memory. Tried to allocate 7.58 GiB. GPU 0 has a total capacity of 139.80 GiB of which 3.05 GiB is "
    "free. Including non-PyTorch memory, this process has 136.74 GiB memory in use."
)


@pytest.mark.parametrize(
    ("changes", "first_remedy"),
    [
        ({}, "Lower batching.tokens (8,192)."),
        ({"sharding": {"activation_checkpointing": {"mode": "none"}}}, "Set sharding.activation_checkpointing"),
        ({"kernels": {"loss": "torch"}}, "Set kernels.loss: chunked."),
    ],
)
def test_it_says_what_did_not_fit_and_what_to_change_first(changes: dict[str, object], first_remedy: str) -> None:
    recipe = Recipe(model={"path": "builtin:llama-3.1-8b"}, data={"train": "builtin:chat"}, **changes)
    plan = resolve(recipe, Hardware(1, "NVIDIA H200", 140.4), find_model(recipe.model), None)
    error = explain(torch.OutOfMemoryError(TORCH_SAYS), plan)
    assert error.exit_code == 6
    assert "Tried to allocate 7.58 GiB" in error.what
    assert "of 140.4" in error.what
    assert error.fix is not None
    assert error.fix.startswith(first_remedy)
    assert "Lower batching.tokens" in error.fix


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError(TORCH_SAYS), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("The size of tensor a (130) must match the size of tensor b (65)"), False),
    ],
)
def test_libraries_that_ask_the_driver_themselves_are_understood(error: RuntimeError, expected: bool) -> None:
    assert is_out_of_memory(error) is expected
