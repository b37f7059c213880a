"""`extends`: chains, circles, places and paths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sft_cli.errors import SftError
from sft_cli.recipe.load import Loaded, load_recipe


def test_a_chain_is_merged_nearest_first(folder: Path, load: Callable[..., Loaded]) -> None:
    Path("a.yaml").write_text(
        "model: {path: org/a, dtype: float32}\ndata: {train: org/a}\ntrain: {seed: 1, epochs: 2}\n"
    )
    Path("b.yaml").write_text("extends: a.yaml\ntrain: {seed: 2}\n")
    recipe = load("extends: b.yaml\nmodel: {path: org/c}\n").recipe
    assert (recipe.model.path, recipe.model.dtype) == ("org/c", "float32")
    assert (recipe.train.seed, recipe.train.epochs) == (2, 2)


def test_paths_of_the_base_are_relative_to_the_base(folder: Path, load: Callable[..., Loaded]) -> None:
    Path("shared").mkdir()
    Path("shared/base.yaml").write_text("model: {path: org/a}\ndata: {train: a.jsonl}\noutput_dir: out\n")
    recipe = load("extends: shared/base.yaml\n").recipe
    assert recipe.data.train[0].path == f"{folder}/shared/a.jsonl"
    assert recipe.output_dir == f"{folder}/out"


def test_an_error_names_the_file_that_wrote_the_key(folder: Path, refused: Callable[..., SftError]) -> None:
    Path("shared").mkdir()
    Path("shared/base.yaml").write_text("model: {path: org/a}\ndata: {train: a.jsonl}\ntrain:\n  epochs: 0\n")
    assert refused("extends: shared/base.yaml\ntrain: {seed: 1}\n").where == "shared/base.yaml:4: train.epochs"


def test_a_list_replaces(folder: Path, load: Callable[..., Loaded]) -> None:
    Path("a.yaml").write_text("model: {path: org/a}\ndata: {train: [org/a, org/b]}\n")
    assert [source.path for source in load("extends: a.yaml\ndata: {train: [org/c]}").recipe.data.train] == ["org/c"]


def test_an_empty_section_keeps_the_base(folder: Path, load: Callable[..., Loaded]) -> None:
    Path("a.yaml").write_text("model: {path: org/a}\ndata: {train: org/a}\noptimizer: {eps: 1e-6}\n")
    assert load("extends: a.yaml\noptimizer:\n").recipe.optimizer.eps == 1e-6


def test_a_builtin_recipe_can_be_extended(load: Callable[..., Loaded]) -> None:
    loaded = load("extends: builtin:tiny\ntrain: {seed: 7}\n")
    assert loaded.recipe.train.seed == 7
    assert loaded.recipe.model.path == "builtin:tiny-hybrid"
    assert loaded.places.of("model.path").startswith("builtin:tiny:")


def test_variables_in_extends(folder: Path, load: Callable[..., Loaded], monkeypatch: object) -> None:
    Path("a.yaml").write_text("model: {path: org/a}\ndata: {train: org/a}\n")
    assert load(f"extends: {folder}/a.yaml").recipe.model.path == "org/a"


def test_a_circle_is_named(folder: Path, refused: Callable[..., SftError]) -> None:
    Path("a.yaml").write_text("extends: b.yaml\n")
    Path("b.yaml").write_text("\nextends: a.yaml\n")
    error = refused("extends: a.yaml\n")
    assert error.where == "b.yaml:2: extends"
    assert "a.yaml -> b.yaml -> a.yaml" in error.what


def test_what_extends_can_not_be(folder: Path, refused: Callable[..., SftError]) -> None:
    missing = refused("\nextends: gone.yaml\n")
    assert missing.where == "r.yaml:2: extends"
    assert f"{folder}/gone.yaml" in missing.what
    assert refused("extends: [a, b]\n").what == "must be one path"
    assert "builtin:tiny" in (refused("extends: builtin:huge\n").fix or "")


def test_a_link_to_a_recipe_is_read_where_it_is_named(folder: Path) -> None:
    Path("real").mkdir()
    Path("real/r.yaml").write_text("model: {path: org/a}\ndata: {train: a.jsonl}\n")
    Path("link.yaml").symlink_to("real/r.yaml")
    assert load_recipe(Path("link.yaml")).recipe.data.train[0].path == f"{folder}/a.jsonl"
