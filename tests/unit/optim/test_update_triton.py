"""The optimizer's kernel in Triton's interpreter against the CPU's code, and compiled for a GPU that is not here."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from support.processes import answer

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
NUMBERS_OF_A_THREAD = 16


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    return answer("support.update_in_interpreter", TRITON_INTERPRET="1")


@pytest.mark.parametrize("block", ["256", "64", "no"])
@pytest.mark.parametrize("kept", ["torch.float32 False", "torch.bfloat16 False", "torch.bfloat16 True"])
def test_it_makes_what_the_cpu_makes(interpreted: dict[str, Any], block: str, kept: str) -> None:
    """To the bit with stochastic rounding, whose draws are the same; else the interpreter cuts bfloat16 off."""
    found = interpreted[f"{block} {kept}"]
    assert found["codes"] == 0
    assert (
        found["weights"] <= {"torch.float32 False": 1e-6, "torch.bfloat16 False": 2**-7, "torch.bfloat16 True": 0}[kept]
    )
    assert found["scales"] < 1e-5
    assert found["changed by a bad step"] == 0
    assert found["steps"] == 0


@pytest.mark.parametrize("block", ["256", "64", "no"])
@pytest.mark.parametrize("kept", ["torch.float32 False", "torch.bfloat16 False", "torch.bfloat16 True"])
def test_it_sums_squares_on_the_way_and_leaves_what_is_not_finite(
    interpreted: dict[str, Any], block: str, kept: str
) -> None:
    found = interpreted[f"{block} {kept}"]
    assert found["squares"] < 1e-6
    assert found["wrong where spoilt"] == 0
    assert found["bad sums"] == 2


def test_many_small_tensors_together_become_what_each_becomes_alone(interpreted: dict[str, Any]) -> None:
    found = interpreted["together"]
    assert found["differ"] == 0
    assert found["changed"] > 0.8 * found["numbers"]
    assert found["squares"] < 1e-6


def test_compiled_it_moves_16_bytes_at_once_and_divides_once_a_block(tmp_path: Path) -> None:
    for count_type, found in answer("support.update_ahead", TRITON_CACHE_DIR=str(tmp_path)).items():
        # Two bytes a weight and a gradient, one a code.
        assert found["ld.global.v4.b32"] == NUMBERS_OF_A_THREAD * 6 / 16, count_type
        assert found["st.global.v4.b32"] == NUMBERS_OF_A_THREAD * 4 / 16
        assert sum(count for name, count in found.items() if name.startswith("div")) == 3  # two scales, one step size
        # One scramble a number, and one of the step.
        assert found["mul.lo.s32"] == 2 * (NUMBERS_OF_A_THREAD + 1)


def test_in_backward_it_makes_the_norm_and_the_weights_that_the_cpu_makes() -> None:
    found = answer("support.in_backward_in_interpreter", TRITON_INTERPRET="1")
    assert found["norms"] == pytest.approx(found["expected"], rel=1e-6)
    assert found["difference"] < 1e-4  # scales; weights and codes are the same
    assert found["rehearsal"]
