"""What `norm: sftune` and `conv: sftune` launch in a step is what is compiled ahead, variant by variant as Triton tells
them apart; without a GPU."""

from __future__ import annotations

import importlib.util

import pytest
from support.processes import answer

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

HYBRID = {
    "causal_conv_forward", "causal_conv_backward", "elementwise_decay_forward", "elementwise_decay_backward",
    "elementwise_gate_forward", "elementwise_gate_backward",
}  # fmt: skip
PLAIN = {
    "rms_norm_forward", "rms_norm_backward", "rotated_rms_norm_forward", "rotated_rms_norm_backward", "reduce_programs",
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "dtype", "weights", "mode"),
    [
        ("qwen3_5", "bfloat16", "bfloat16", "packing"),
        ("qwen3_5", "bfloat16", "float32", "packing"),  # autocast
        ("qwen3_5", "float32", "float32", "padding"),
        ("qwen3_next", "bfloat16", "bfloat16", "packing"),
        ("llama", "bfloat16", "float32", "padding"),
        ("qwen3", "bfloat16", "bfloat16", "packing"),
        ("gemma3", "bfloat16", "bfloat16", "packing"),
    ],
)
def test_a_step_launches_only_what_is_compiled_ahead(family: str, dtype: str, weights: str, mode: str) -> None:
    found = answer("support.launches", family, dtype, weights, mode)
    step, ahead = set(found["step"]), set(found["ahead"])
    assert step - ahead == set()
    # Norms called by themselves are tried with both offsets, and a gate of exactness packs rows, too.
    assert ahead == step or family == "gemma3" or mode == "padding"
    plain = {"rms_norm_forward", "rms_norm_backward", "reduce_programs"} if family == "gemma3" else PLAIN
    assert {variant.partition(" ")[0] for variant in step} == plain | (HYBRID if family.startswith("qwen3_") else set())
