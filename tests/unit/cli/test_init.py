"""The starter recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.command_line import Ended

from sft_cli.recipe.load import load_recipe


def test_writes_a_recipe_that_loads(sftune: Callable[..., Ended], folder: Path) -> None:
    ended = sftune("init")
    assert ended.code == 0
    assert "sftune.yaml" in ended.out
    loaded = load_recipe(None)
    assert loaded.origin == "sftune.yaml in the working directory"
    assert loaded.recipe.output_dir == f"{folder}/runs/first"


def test_the_keys_in_comments_are_valid_too(sftune: Callable[..., Ended], folder: Path) -> None:
    sftune("init", "r.yaml")
    lines = []
    for line in Path("r.yaml").read_text().splitlines()[3:]:
        indent, hash_, rest = line.partition("# ")
        is_commented_key = hash_ and not indent.strip() and ":" in rest.split("#")[0]
        lines.append(indent + rest if is_commented_key else line)
    Path("r.yaml").write_text("\n".join(lines).replace("max_length: 2048", "max_length: 512"))
    recipe = load_recipe(Path("r.yaml")).recipe
    assert (recipe.launch.gpus, recipe.train.max_steps, recipe.data.bad_rows) == (2, 100, "skip")
    assert recipe.evaluate.every_steps == 50


def test_overwrites_nothing(sftune: Callable[..., Ended]) -> None:
    Path("mine.yaml").write_text("mine")
    ended = sftune("init", "mine.yaml")
    assert ended.code == 2
    assert ended.err.startswith("error: mine.yaml: exists already")
    assert Path("mine.yaml").read_text() == "mine"


def test_a_folder_gets_a_sftune_yaml(sftune: Callable[..., Ended]) -> None:
    Path("there").mkdir()
    assert sftune("init", "there").code == 0
    assert Path("there/sftune.yaml").is_file()


def test_a_folder_that_is_not_there(sftune: Callable[..., Ended]) -> None:
    ended = sftune("init", "nowhere/r.yaml")
    assert ended.code == 2
    assert "nowhere/r.yaml: can't be written" in ended.err
