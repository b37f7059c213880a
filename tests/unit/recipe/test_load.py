"""Which recipe is read, and that those which ship are valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from sft_cli.errors import RecipeError
from sft_cli.recipe.load import load_recipe


def test_without_a_recipe_the_built_in_tiny_one(folder: Path) -> None:
    loaded = load_recipe(None)
    assert loaded.origin == "the built-in tiny recipe"
    assert loaded.recipe.model.path == "builtin:tiny-hybrid"
    assert loaded.recipe.data.train[0].path == "builtin:chat"
    assert loaded.recipe.data.eval[0].split == "heldout"
    assert loaded.recipe.output_dir == f"{folder}/runs/tiny"


def test_without_a_recipe_the_one_in_the_working_directory(folder: Path) -> None:
    Path("sftune.yaml").write_text("extends: builtin:tiny\ntrain: {seed: 5}\n")
    loaded = load_recipe(None)
    assert loaded.origin == "sftune.yaml in the working directory"
    assert loaded.recipe.train.seed == 5


def test_a_broken_link_in_the_working_directory_is_no_reason_to_train_something_else(folder: Path) -> None:
    Path("sftune.yaml").symlink_to("gone.yaml")
    with pytest.raises(RecipeError, match="no such file"):
        load_recipe(None)


def test_a_built_in_recipe_by_name(folder: Path) -> None:
    assert load_recipe(Path("builtin:tiny")).recipe == load_recipe(None).recipe
    with pytest.raises(RecipeError, match="no built-in recipe builtin:nope"):
        load_recipe(Path("builtin:nope"))
    with pytest.raises(RecipeError, match="no built-in recipe"):
        load_recipe(Path("builtin:../recipe/tiny"))


def test_places_know_the_lines(folder: Path) -> None:
    Path("r.yaml").write_text("extends: builtin:tiny\ntrain:\n  seed: 5\n")
    places = load_recipe(Path("r.yaml"), ["train.epochs=2"]).places
    assert places.of("train.seed") == "r.yaml:3: train.seed"
    assert places.of("train.epochs") == "--set train.epochs=2"
    assert places.of("launch.gpus") == "r.yaml: launch.gpus"
