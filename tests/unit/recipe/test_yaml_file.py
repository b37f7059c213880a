"""Recipe files that can't be read as one mapping."""

from __future__ import annotations

from pathlib import Path

import pytest

from sft_cli.errors import RecipeError
from sft_cli.recipe.yaml_file import MAX_BYTES, read


def error_of(path: Path) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        read(path, path.name)
    return caught.value


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        (b"", "r.yaml", "the recipe is empty"),
        (b"# only a comment\n", "r.yaml", "the recipe is empty"),
        (b"- a\n- b\n", "r.yaml:1", "this file holds a list"),
        (b"just words\n", "r.yaml:1", "this file holds a single value"),
        (b"model:\n  path: \xff\n", "r.yaml:2", "not UTF-8 text"),
        (b"# " + b"x" * MAX_BYTES, "r.yaml", "not a recipe"),
    ],
)
def test_files_that_are_no_recipe(tmp_path: Path, content: bytes, where: str, what: str) -> None:
    (tmp_path / "r.yaml").write_bytes(content)
    error = error_of(tmp_path / "r.yaml")
    assert error.where == where
    assert what in error.what
    assert error.fix
    assert error.exit_code == 2


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_bytes(b"\xef\xbb\xbfmodel: 1\n")
    assert read(tmp_path / "r.yaml", "r.yaml").values == {"model": 1}


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("a: 1")
    error = error_of(tmp_path / "recpie.yaml")
    assert error.what == "no such file"
    assert error.fix == f"Did you mean {tmp_path / 'recipe.yaml'}?"


def test_a_missing_file_in_a_missing_folder(tmp_path: Path) -> None:
    error = error_of(tmp_path / "nowhere" / "r.yaml")
    assert error.what == "no such file"
    assert "sftune init" in (error.fix or "")


def test_a_folder(tmp_path: Path) -> None:
    assert "folder" in error_of(tmp_path).what


def test_a_name_too_long_for_the_disk(tmp_path: Path) -> None:
    assert "can't be read" in error_of(tmp_path / ("x" * 5000)).what
