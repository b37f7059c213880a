"""The JSON Schema is one, and says what the loader says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.command_line import ROOT, Ended

from sft_cli.recipe.json_schema import json_schema
from sft_cli.recipe.yaml_lines import parse

BASE = {"model": {"path": "org/m"}, "data": {"train": "a.jsonl"}}


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    return Draft202012Validator(json_schema())


def test_the_command_prints_a_draft_2020_12_schema(sftune: Callable[..., Ended]) -> None:
    ended = sftune("schema")
    assert ended.code == 0
    schema = json.loads(ended.out)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    "recipe",
    [
        BASE,
        {"extends": "other.yaml"},
        {"extends": "other.yaml", "model": {"dtype": "float32"}, "data": {"supervise": "all"}},
        {**BASE, "optimizer": None, "sharding": {"activation_checkpointing": None}},
        {**BASE, "sharding": {"activation_checkpointing": {"layers": 3}, "reshard_after_forward": 2}},
        {**BASE, "data": {"train": ["a", {"path": "b", "weight": 2}], "eval": {"path": "c"}}},
        {**BASE, "train": {"max_grad_norm": None}, "optimizer": {"betas": [0.9, 0.95]}},
    ],
)
def test_accepts(validator: Draft202012Validator, recipe: Any) -> None:
    assert [error.message for error in validator.iter_errors(recipe)] == []


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"model": {"path": "a"}},
        {"model": {}, "data": {"train": "a"}},
        {"model": None, "data": {"train": "a"}},
        {**BASE, "lora": {}},
        {**BASE, "batching": {"mode": "off"}},
        {**BASE, "optimizer": {"learning_rate": True}},
        {**BASE, "optimizer": {"lr": 1}},
        {**BASE, "data": {"train": []}},
        {**BASE, "data": {"train": [{"split": "x"}]}},
        {"extends": 3},
    ],
)
def test_refuses(validator: Draft202012Validator, recipe: Any) -> None:
    assert not validator.is_valid(recipe)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_the_shipped_recipes_are_valid(validator: Draft202012Validator, path: Path) -> None:
    assert validator.is_valid(parse(path.read_text(encoding="utf-8"), path.name).values)
