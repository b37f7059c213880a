"""Local files that aren't there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sft_cli.errors import DataError, ModelError
from sft_cli.recipe.inputs import check_chat_template, check_data
from sft_cli.recipe.load import Loaded


def data_error(loaded: Loaded) -> DataError:
    with pytest.raises(DataError) as caught:
        check_data(loaded.recipe, loaded.places)
    return caught.value


def test_a_missing_file_names_its_line_and_the_nearest_name(folder: Path, load: Callable[..., Loaded]) -> None:
    Path("chats.jsonl").write_text("")
    error = data_error(load("model: {path: org/m}\ndata:\n  train:\n    - org/a\n    - path: chat.jsonl\n"))
    assert error.exit_code == 3
    assert error.where == "r.yaml:5: data.train.1.path"
    assert error.what == f"no such file: {folder}/chat.jsonl"
    assert error.fix == f"Did you mean {folder}/chats.jsonl?"


def test_a_glob_without_matches(load: Callable[..., Loaded]) -> None:
    Path("chat.json").write_text("")
    error = data_error(load("model: {path: org/m}\ndata: {train: 'cha*.jsonl'}"))
    assert error.what.startswith("no file matches the pattern: ")
    assert "chat.json?" not in (error.fix or "")


def test_a_missing_folder(folder: Path, load: Callable[..., Loaded]) -> None:
    assert f"{folder} has no set;" in (data_error(load("model: {path: org/m}\ndata: {train: set/a.jsonl}")).fix or "")


def test_a_file_that_stands_in_the_working_directory(folder: Path, load: Callable[..., Loaded]) -> None:
    Path("base").mkdir()
    Path("base/b.yaml").write_text("model: {path: org/m}\ndata: {train: chat.jsonl}\n")
    Path("chat.jsonl").write_text("")
    assert f"{folder}/chat.jsonl" in (data_error(load("extends: base/b.yaml")).fix or "")


def test_what_is_there_passes(folder: Path, load: Callable[..., Loaded]) -> None:
    Path("a[1].jsonl").write_text("")
    Path("b.jsonl").write_text("")
    loaded = load(
        "model: {path: org/m}\ndata: {train: ['a[1].jsonl', '*.jsonl', org/a, 'builtin:chat'], eval: b.jsonl}"
    )
    check_data(loaded.recipe, loaded.places)


def test_the_chat_template(folder: Path, load: Callable[..., Loaded]) -> None:
    loaded = load("model: {path: org/m, chat_template: t.jinja}\ndata: {train: org/a}")
    with pytest.raises(ModelError, match=r"r\.yaml:1: model\.chat_template: no such file") as caught:
        check_chat_template(loaded.recipe, loaded.places)
    assert caught.value.exit_code == 2
    Path("t.jinja").mkdir()
    with pytest.raises(ModelError, match="a chat template is a file"):
        check_chat_template(loaded.recipe, loaded.places)
    Path("t.jinja").rmdir()
    Path("t.jinja").write_text("")
    check_chat_template(loaded.recipe, loaded.places)
