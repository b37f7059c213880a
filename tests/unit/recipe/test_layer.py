"""Laying one layer over another."""

from __future__ import annotations

from sft_cli.recipe.layer import Layer, laid_over, lookup, normalised, replaced
from sft_cli.recipe.places import Place

OVER, BASE = Place("r.yaml", 1, 0), Place("base.yaml", 1, 1)


def test_mappings_merge_and_lists_replace() -> None:
    base = Layer({"a": {"x": 1, "y": [1, 2]}, "b": 3})
    over = Layer({"a": {"y": [3], "z": 4}})
    assert laid_over(over, base).values == {"a": {"x": 1, "y": [3], "z": 4}, "b": 3}


def test_null_replaces_a_value() -> None:
    assert laid_over(Layer({"a": {"x": None}}), Layer({"a": {"x": 1}})).values == {"a": {"x": None}}


def test_places_follow_the_values_that_stay() -> None:
    base = Layer({"a": {"x": 1, "y": [{"p": 1}]}}, {("a",): BASE, ("a", "x"): BASE, ("a", "y", 0, "p"): BASE})
    over = Layer({"a": {"y": [{"q": 1}]}}, {("a",): OVER, ("a", "y"): OVER})
    assert laid_over(over, base).places == {("a",): OVER, ("a", "x"): BASE, ("a", "y"): OVER}


def test_sources_become_lists_of_mappings() -> None:
    assert normalised(Layer({"data": {"train": "a", "eval": ["b", {"path": "c"}]}})).values == {
        "data": {"train": [{"path": "a"}], "eval": [{"path": "b"}, {"path": "c"}]}
    }


def test_a_source_written_as_a_mapping_keeps_its_lines() -> None:
    layer = Layer({"data": {"train": {"path": "a"}}}, {("data", "train"): BASE, ("data", "train", "path"): OVER})
    assert normalised(layer).values == {"data": {"train": [{"path": "a"}]}}
    assert normalised(layer).places == {("data", "train"): BASE, ("data", "train", 0, "path"): OVER}


def test_an_empty_section_is_a_mapping_without_keys() -> None:
    values = normalised(Layer({"optimizer": None, "sharding": {"activation_checkpointing": None}})).values
    assert values == {"optimizer": {}, "sharding": {"activation_checkpointing": {}}}


def test_lookup_and_replaced() -> None:
    values = {"a": [{"b": 1}, {"b": 2}]}
    assert lookup(values, ("a", 1, "b")) == 2
    assert lookup(values, ("a", 2, "b")) is None
    assert replaced(values, ("a", 0, "b"), 9) == {"a": [{"b": 9}, {"b": 2}]}
    assert values == {"a": [{"b": 1}, {"b": 2}]}
