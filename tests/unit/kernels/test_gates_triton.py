"""sftune's own decay and beta in Triton's interpreter against torch's in float64."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from support.processes import answer

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
CASES = ["usual", "far apart", "slow decay", "one token", "bfloat16"]


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    return answer("support.gates_in_interpreter", TRITON_INTERPRET="1")


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_torch_does(interpreted: dict[str, Any], name: str) -> None:
    """A decay is a small number beside 1, and all its digits count."""
    for what, difference in interpreted[name].items():
        is_rounded = name == "bfloat16" and what in ("beta", "of_a", "of_b")
        assert difference < (0.01 if is_rounded else 1e-6), what


def test_the_definition_is_that_of_the_block(interpreted: dict[str, Any]) -> None:
    assert interpreted["definition"] < 1e-6
    assert {*CASES, "definition"} == set(interpreted)
