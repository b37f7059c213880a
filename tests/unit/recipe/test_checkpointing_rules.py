"""Which keys of activation checkpointing go together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sft_cli.errors import RecipeError, SftError
from sft_cli.recipe.load import Loaded

BASE = "model: {path: org/model}\ndata: {train: org/data}\n"


def text(keys: str) -> str:
    return f"{BASE}sharding: {{activation_checkpointing: {{{keys}}}}}"


@pytest.mark.parametrize(
    ("keys", "key", "what", "fix"),
    [
        ("mode: auto, layers: 4", "layers", "`mode: auto` finds out", "Leave this key out"),
        ("mode: auto, layers: auto", "layers", "`mode: auto` finds out", "`mode: full`"),
        ("mode: auto, others: selective", "others", "`mode: auto` finds out", "Leave this key out"),
        ("mode: selective, layers: 4, others: selective", "others", "this is `mode: selective`", "Write `mode: full`"),
        ("mode: none, others: selective", "others", "this is `mode: none`", "leave this key out"),
        ("mode: full, others: selective", "others", "would change nothing", "`layers: auto`"),
        ("others: selective", "others", "would change nothing", "a number of layers"),
    ],
)
def test_what_would_contradict_or_change_nothing(
    refused: Callable[..., SftError], keys: str, key: str, what: str, fix: str
) -> None:
    error = refused(text(keys))
    assert isinstance(error, RecipeError)
    assert (error.where or "").endswith(f"activation_checkpointing.{key}")
    assert what in str(error)
    assert fix in (error.fix or "")


@pytest.mark.parametrize(
    "keys",
    [
        "mode: auto",
        "mode: auto, layers: all, others: none, offload: true",
        "mode: full, layers: 4, others: selective",
        "mode: full, layers: auto, others: selective",
        "mode: selective, layers: 4, others: none",
    ],
)
def test_what_goes_together(load: Callable[..., Loaded], keys: str) -> None:
    load(text(keys))
