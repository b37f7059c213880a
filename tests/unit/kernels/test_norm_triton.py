"""sftune's own RMSNorm in Triton's interpreter against its definition, and compiled for a GPU that is not here."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from support.processes import answer

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
CASES = [
    "1 + w", "w", "heads, strided", "wide rows", "a sum", "a sum, w", "a sum that nobody uses on", "the stream alone",
    "one row", "no rows", "bfloat16", "bfloat16, w", "a stream in float32", "as many programs as there are",
]  # fmt: skip
ALLOWED = {"bfloat16": 0.02, "bfloat16, w": 0.02, "a stream in float32": 0.01}
"""Of the 2-norm; the interpreter cuts bfloat16 off where a GPU rounds. In float32 2e-6."""


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    return answer("support.norm_in_interpreter", TRITON_INTERPRET="1")


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_the_definition_does(interpreted: dict[str, Any], name: str) -> None:
    found = interpreted[name]
    assert found["outs"] < ALLOWED.get(name, 2e-6)
    assert found["gradients"] < ALLOWED.get(name, 2e-6)
    assert found["is_contiguous"] or name == "heads, strided"
    assert found["has_its_dtype"]


def test_all_cases_are_looked_at(interpreted: dict[str, Any]) -> None:
    assert {*CASES, "stream", "frozen"} == set(interpreted)


def test_where_only_the_stream_is_used_its_gradient_goes_through(interpreted: dict[str, Any]) -> None:
    assert interpreted["stream"] == {"of_x": 0.0, "of_residual": 0.0}


def test_a_frozen_weight_gets_no_gradient(interpreted: dict[str, Any]) -> None:
    assert interpreted["frozen"]["of_x"] < 2e-6


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_it_compiles_for_a_gpu_and_moves_16_bytes_at_once(dtype: str, tmp_path: Path) -> None:
    found = answer("support.norm_ahead", dtype, TRITON_CACHE_DIR=str(tmp_path))[dtype]
    assert len(found) == 11
    for name, made in found.items():
        if "reduce_programs" not in name and "decay" not in name:
            assert {"ld.global.v4.b32", "st.global.v4.b32"} <= set(made["accesses"]), name
