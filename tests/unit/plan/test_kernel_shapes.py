"""What kernels are compiled for, by a model's config."""

from __future__ import annotations

from typing import Any

import pytest

from sft_cli.plan.kernel_shapes import plain_layers_of
from sft_cli.plan.model_facts import find_model
from sft_cli.recipe.schema import ModelSection


@pytest.mark.parametrize(
    ("rotary", "rotated"),
    [({"partial_rotary_factor": 0.5}, 128), ({"partial_rotary_factor": None}, 64), ({}, 64), (None, 64)],
)
def test_a_share_of_heads_that_no_config_says_is_a_quarter(rotary: dict[str, Any] | None, rotated: int) -> None:
    model = find_model(ModelSection(path="builtin:qwen3.5-0.8b"))
    config = {**model.config, "rope_parameters": rotary, "partial_rotary_factor": None}
    assert plain_layers_of(model.architecture(), config, 1.0, "bfloat16").rotated == rotated
