"""What this version does not do yet is refused, and says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sft_cli.errors import SftError
from sft_cli.recipe.keys import keys
from sft_cli.recipe.load import Loaded
from sft_cli.recipe.unbuilt import KEYS

BASE = "model: {path: org/model}\ndata: {train: org/data}\n"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("kernels: {hub: true}", "kernels.hub"),
    ],
)
def test_keys_end_with_2(refused: Callable[..., SftError], text: str, key: str) -> None:
    error = refused(BASE + text)
    assert error.exit_code == 2
    assert f"{key}" in str(error)
    assert "not built yet in this version" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "kernels: {linear_attention: torch, conv: torch, attention: sdpa, norm: torch, gated_norm: torch, mlp: torch}",
        "kernels: {loss: chunked}",
        "kernels: {compile: true, float8: rowwise}",
        "kernels: {loss: torch, strict: false}",
        "sharding: {activation_checkpointing: {mode: selective, layers: auto, offload: true}}",
        "sharding: {activation_checkpointing: {layers: 2}}",
        "sharding: {activation_checkpointing: {layers: 0, mode: none}}",
        "sharding: {reshard_after_forward: 2, reduce_dtype: bfloat16}",
        "batching: {mode: padding, order: length_grouped}",
    ],
)
def test_what_is_built_passes(load: Callable[..., Loaded], text: str) -> None:
    load(BASE + text)


def test_every_line_of_the_table_is_a_key_whose_default_is_built() -> None:
    for entry in KEYS:
        key = keys()[tuple(part for part in entry.key.split(".") if part != "*")]
        assert entry.is_built(key.field.get_default()), entry.key
