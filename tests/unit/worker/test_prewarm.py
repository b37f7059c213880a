"""What a plan asks to be compiled ahead."""

from __future__ import annotations

from typing import Any

import pytest

from sft_cli.kernels.prewarm.request import DECAY, GATE, HEADS, SUMS, Request
from sft_cli.model.families import FAMILIES
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.kernel_shapes import PlainLayers
from sft_cli.plan.model_facts import find_model
from sft_cli.plan.resolve import resolve
from sft_cli.recipe.schema import Recipe
from sft_cli.worker.prewarm import request_of

H200 = Hardware(
    1,
    "NVIDIA H200",
    140.4,
    compute_capability=(9, 0),
    packages={"triton": "3.6.0", "fla-core": "0.6.0", "tilelang": "0.1.15"},
)


def asked(path: str = "builtin:qwen3.5-0.8b", ranks: int = 1, **sections: Any) -> Request:
    model = {"path": path, **sections.pop("model", {})}
    recipe = Recipe.model_validate({"data": {"train": "builtin:chat"}, "model": model, **sections})
    return request_of(resolve(recipe, H200, find_model(recipe.model), None, ranks), gpu="NVIDIA H200, 9.0")


def test_all_that_norm_and_conv_sftune_call_of_a_hybrid() -> None:
    request = asked(batching={"tokens": 4096})
    assert {slot: request.backends[slot] for slot in ("norm", "conv")} == {"norm": "sftune", "conv": "sftune"}
    assert {SUMS, HEADS, GATE, "conv", DECAY} <= set(request.parts)
    assert "norm" not in request.parts
    assert not request.is_padded
    assert asked(batching={"mode": "padding", "tokens": 4096}).is_padded


def test_a_plain_model_without_gates() -> None:
    request = asked("builtin:llama-3.1-8b")
    assert [part for part in request.parts if part in (SUMS, HEADS, GATE, DECAY)] == [SUMS, HEADS]
    plain = request.plain
    assert plain is not None
    assert (plain.offset, plain.head_norms, plain.is_gated, plain.rotated) == (0.0, False, False, 128)


@pytest.mark.parametrize(
    ("backend", "master", "weights"),
    [("none", "float32", "float32"), ("none", "bfloat16", "bfloat16"), ("fsdp2", "float32", "bfloat16")],
)
def test_layers_see_their_parameters_as_fsdp2_casts_them_or_as_masters(backend: str, master: str, weights: str) -> None:
    request = asked(model={"dtype": "bfloat16", "master_dtype": master}, sharding={"backend": backend})
    expected = PlainLayers(offset=1.0, weights=weights, head_norms=True, is_gated=True, rotated=64)  # type: ignore[arg-type]
    assert request.plain == expected


def test_who_knows_the_layers_knows_their_norms() -> None:
    assert all(family.norm_offset is not None for family in FAMILIES.values() if family.is_plain)
