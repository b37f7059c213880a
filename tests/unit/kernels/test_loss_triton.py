"""The chunked loss's kernels in Triton's interpreter, and compiled for a GPU that is not here. `check-kernels` calls
them on a GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from support.processes import answer

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
ALLOWED = {"float32": 1e-6, "bfloat16": 0.01}
"""Of the 2-norm; the interpreter cuts bfloat16 off where a GPU rounds."""


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    return answer("support.loss_in_interpreter", TRITON_INTERPRET="1")


@pytest.mark.parametrize("dtype", ALLOWED)
@pytest.mark.parametrize("words", [32, 100])
@pytest.mark.parametrize("logits", ["usual", "far apart", "nearly alike"])
def test_a_row_becomes_its_loss_and_gradient(interpreted: dict[str, Any], logits: str, words: int, dtype: str) -> None:
    found = interpreted[f"{logits} {words} {dtype}"]
    assert found["loss"] < 1e-6
    assert found["gradient"] < ALLOWED[dtype]
    assert found["is_untouched"]
    assert found["is_alike"]


@pytest.mark.parametrize("dtype", ALLOWED)
def test_gradients_of_hidden_states_and_weight(interpreted: dict[str, Any], dtype: str) -> None:
    found = interpreted[f"projection {dtype}"]
    for what in ("loss", "hidden", "weight"):
        assert found[what] < ALLOWED[dtype], what


def test_what_is_not_finite_is_told_and_stays_in_its_row(interpreted: dict[str, Any]) -> None:
    assert interpreted["not finite"] == [[False, True, True]] * 2


def test_it_compiles_for_a_gpu_and_moves_16_bytes_at_once(tmp_path: Path) -> None:
    for name, accesses in answer("support.loss_ahead", TRITON_CACHE_DIR=str(tmp_path)).items():
        assert "ld.global.v4.b32" in accesses, name
        assert ("st.global.v4.b32" in accesses) == ("False" not in name), name
