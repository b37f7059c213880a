"""What a plan says of `kernels.float8` and `kernels.compile`, and which machines it refuses them on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sft_cli.errors import KernelError
from sft_cli.plan.float8 import why_not, why_not_gathered
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.plan import Plan

MakePlan = Callable[..., Plan]

PACKAGES = {
    "fla-core": "0.6.0", "triton": "3.6.0", "tilelang": "0.1.15", "flash-qla": "0.1.3", "liger-kernel": "0.8.5",
    "torchao": "0.18.0",
}  # fmt: skip
H200 = Hardware(1, "NVIDIA H200", 140.4, compute_capability=(9, 0), packages=PACKAGES)
MODEL = {"path": "builtin:qwen3.8-27b"}


def because(plan: Plan) -> dict[str, str]:
    return {choice.key: choice.because for choice in plan.choices}


def without(package: str) -> Hardware:
    return replace(H200, packages={name: version for name, version in PACKAGES.items() if name != package})


@pytest.mark.parametrize(
    ("name", "rows", "columns", "runs"),
    [
        ("mlp.gate_proj", 17408, 5120, True),
        ("mlp.down_proj", 5120, 17408, True),
        ("self_attn.q_proj", 12288, 5120, True),
        ("self_attn.k_proj", 1024, 5120, True),
        ("linear_attn.in_proj_qkv", 10240, 5120, True),
        ("linear_attn.out_proj", 5120, 6144, True),
        ("linear_attn.in_proj_a", 48, 5120, False),
        ("a shared expert's gate", 1, 5120, False),
        ("no multiple of 16", 5120, 1032, False),
    ],
)
def test_of_27b_the_small_projections_stay(name: str, rows: int, columns: int, runs: bool) -> None:
    assert (why_not(rows, columns) is None) == runs


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_the_plan_says_what_runs_in_float8(make_plan: MakePlan, recipe: str) -> None:
    plan = make_plan(hardware=H200, model=MODEL, kernels={"float8": recipe, "compile": True})
    told = because(plan)["kernels.float8"]
    assert "multiples of 16 from 1,024 on" in told
    assert ("gathered in float8" in told) == (recipe == "tensorwise")
    assert "without `compile: true`" not in told
    assert plan.recipe.kernels.mlp == "torch"
    assert because(plan)["kernels.compile"] == "asked for; one kernel, or few, of each of: " + (
        "mlp, linear, cast, gates" if recipe == "tensorwise" else "mlp, linear, gates"
    )
    alone = make_plan(hardware=H200, model=MODEL, kernels={"float8": recipe})
    assert "without `compile: true`" in because(alone)["kernels.float8"]
    assert alone.recipe.kernels.mlp == "liger"


@pytest.mark.parametrize(
    ("sharding", "why"),
    [
        ({}, None),
        ({"reshard_after_forward": False}, None),
        ({"cpu_offload": True}, "masters"),
        ({"buffers": "preallocated"}, "one dtype"),
        ({"backend": "none"}, "nothing is gathered"),
    ],
)
def test_what_keeps_weights_from_being_gathered_in_float8(
    make_plan: MakePlan, sharding: dict[str, Any], why: str | None
) -> None:
    plan = make_plan(hardware=H200, model=MODEL, kernels={"float8": "tensorwise"}, sharding=sharding)
    reason = why_not_gathered(plan.recipe)
    assert reason is None if why is None else why in str(reason)


@pytest.mark.parametrize(
    ("hardware", "what", "fix"),
    [
        (None, "needs a GPU", "float8: none"),
        (without("torchao"), "no torchao from 0.18 on is installed", "pip install 'torchao>=0.18'"),
        (replace(H200, packages={**PACKAGES, "torchao": "0.17.0"}), "no torchao from 0.18 on", "pip install"),
        (replace(H200, compute_capability=(8, 0)), "compute capability 8.0", "newer GPU"),
        (
            Hardware(0, "NVIDIA A100", 80.0, named=True, compute_capability=(8, 0)),
            "compute capability 8.0",
            "float8: none",
        ),
    ],
)
def test_a_machine_without_is_told_before_anything_is_loaded(
    make_plan: MakePlan, hardware: Hardware | None, what: str, fix: str
) -> None:
    with pytest.raises(KernelError) as caught:
        make_plan(hardware=hardware, model={**MODEL, "dtype": "bfloat16"}, kernels={"float8": "tensorwise"})
    assert caught.value.exit_code == 4
    assert "kernels.float8" in str(caught.value.where)
    assert what in caught.value.what
    assert fix in str(caught.value.fix)


def test_compile_needs_a_compiler(make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(KernelError, match="no C\\+\\+ compiler"):
        make_plan(model={"path": "builtin:tiny-hybrid"}, kernels={"compile": True})
    make_plan(model={"path": "builtin:tiny-hybrid"}, kernels={"compile": True, "strict": False})
    with pytest.raises(KernelError, match="Triton is not installed"):
        make_plan(hardware=without("triton"), model=MODEL, kernels={"compile": True})


def test_on_a_cpu_all_is_compiled(make_plan: MakePlan) -> None:
    plan = make_plan(model={"path": "builtin:tiny-hybrid"}, kernels={"compile": True})
    assert because(plan)["kernels.compile"].endswith("mlp, norm, gated_norm, gates")
