"""Where a key was written, in words."""

from __future__ import annotations

import pytest

from sft_cli.recipe.places import Place, Places, join, split

PLACES = Places(
    "r.yaml",
    {
        ("batching",): Place("r.yaml", 3, 0),
        ("batching", "tokens"): Place("r.yaml", 4, 0),
        ("data", "train"): Place("base.yaml", 2, 1),
        ("train", "seed"): Place("--set train.seed=3", None, 1000),
        ("optimizer",): Place("--set optimizer={eps: 1}", None, 1001),
    },
)


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("batching.tokens", "r.yaml:4: batching.tokens"),
        ("batching.mode", "r.yaml:3: batching.mode"),
        ("data.train.0.path", "base.yaml:2: data.train.0.path"),
        ("train.seed", "--set train.seed=3"),
        ("optimizer.eps", "--set optimizer={eps: 1}: optimizer.eps"),
        ("model.path", "r.yaml: model.path"),
    ],
)
def test_of(key: str, place: str) -> None:
    assert PLACES.of(key) == place


def test_order_is_the_recipe_then_what_it_extends_then_the_command_line() -> None:
    keys = ["optimizer.eps", "train.seed", "data.train", "batching.tokens", "batching.mode"]
    assert sorted(keys, key=PLACES.order) == [
        "batching.mode",
        "batching.tokens",
        "data.train",
        "train.seed",
        "optimizer.eps",
    ]


def test_split_and_join() -> None:
    assert split("data.train.0.path") == ("data", "train", 0, "path")
    assert join(("data", "train", 0, "path")) == "data.train.0.path"
