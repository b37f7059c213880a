"""sftune's own head norms, rotation and output gate in Triton's interpreter against their definitions."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from support.processes import answer

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
CASES = [
    "plain", "1 + w", "w, all of a head", "gated", "gated, rows, angles of each", "rows that share angles",
    "gated, strided", "heads of 80", "one token", "no tokens", "bfloat16", "bfloat16, plain",
]  # fmt: skip


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    return answer("support.heads_in_interpreter", TRITON_INTERPRET="1")


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_the_definition_does(interpreted: dict[str, Any], name: str) -> None:
    found = interpreted[name]
    # Of the 2-norm; the interpreter cuts bfloat16 off where a GPU rounds.
    allowed = 0.02 if "bfloat16" in name else 2e-6
    assert found["outs"] < allowed
    assert found["gradients"] < allowed
    assert found["is_contiguous"]
    assert found["has_its_dtype"]


def test_all_cases_are_looked_at(interpreted: dict[str, Any]) -> None:
    assert {*CASES, "one of two"} == set(interpreted)


def test_of_heads_and_gate_either_may_go_unused(interpreted: dict[str, Any]) -> None:
    assert interpreted["one of two"] == {"gate": 0.0, "heads": 0.0}
