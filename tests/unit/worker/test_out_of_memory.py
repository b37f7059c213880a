from __future__ import annotations

from typing import Any

import pytest
import torch

from sft_cli.plan.hardware import Hardware
from sft_cli.plan.model_facts import find_model
from sft_cli.plan.plan import Plan
from sft_cli.plan.resolve import resolve
from sft_cli.recipe.schema import Recipe
from sft_cli.worker.out_of_memory import explain, is_out_of_memory

TORCH_SAYS = (
    "CUDA out of memory. Tried to allocate 7.58 GiB. GPU 0 has a total capacity of 139.80 GiB of which 3.05 GiB is "
    "free. Including non-PyTorch memory, this process has 136.74 GiB memory in use."
)


def plan_of(**sections: Any) -> Plan:
    recipe = Recipe(model={"path": "builtin:llama-3.1-8b"}, data={"train": "builtin:chat"}, **sections)
    return resolve(recipe, Hardware(1, "NVIDIA H200", 140.4), find_model(recipe.model), None)


@pytest.fixture
def everything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sft_cli.recipe.unbuilt.KEYS", ())


@pytest.mark.usefixtures("everything_is_built")
def test_it_says_what_did_not_fit_and_what_takes_most() -> None:
    plan = plan_of()
    error = explain(torch.OutOfMemoryError(TORCH_SAYS), plan)
    assert error.exit_code == 6
    assert error.what.startswith("the GPU is out of memory while training started (Tried to allocate 7.58 GiB)")
    memory = plan.memory_gib
    assert (
        f"the plan estimated {memory.total:.1f} GiB of 140.4, most of it optimizer {memory.optimizer:.1f}" in error.what
    )


@pytest.mark.usefixtures("everything_is_built")
@pytest.mark.parametrize(
    ("sections", "remedies"),
    [
        (
            {"optimizer": {"name": "adamw_8bit"}, "sharding": {"backend": "none"}},
            ["optimizer.in_backward: true", "model.master_dtype: bfloat16"],
        ),
        (
            {"batching": {"tokens": 65536}, "sharding": {"activation_checkpointing": {"mode": "none"}}},
            ["sharding.activation_checkpointing.mode: full"],
        ),
        ({"batching": {"tokens": 65536}, "kernels": {"loss": "torch"}}, ["kernels.loss: chunked saves"]),
    ],
)
def test_what_saves_most_comes_first_with_what_it_saves(sections: dict[str, Any], remedies: list[str]) -> None:
    fix = explain(torch.OutOfMemoryError(TORCH_SAYS), plan_of(**sections)).fix
    assert fix is not None
    lines = fix.splitlines()
    assert 2 <= sum(" saves " in line for line in lines) <= 3
    for remedy in remedies:
        assert any(remedy in line for line in lines)
    assert ("More GPUs" in fix) is (sections.get("sharding", {}).get("backend") != "none")
    assert "nvidia-smi" in lines[-1]


@pytest.mark.usefixtures("everything_is_built")
def test_what_torch_holds_is_told_where_a_gpu_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 130 * 2**30)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 134 * 2**30)
    told = explain(torch.OutOfMemoryError(TORCH_SAYS), plan_of()).what
    assert "; tensors hold 130.0 GiB, and 4.0 more lie unused in torch's allocator; " in told


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
