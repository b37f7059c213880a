"""Which paths are local, and what they are relative to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sft_cli.errors import RecipeError, SftError
from sft_cli.recipe.dump import to_yaml
from sft_cli.recipe.load import Loaded, load_recipe
from sft_cli.recipe.paths import escaped, expanded, is_address, looks_local


@pytest.mark.parametrize(
    "path", ["./a", "../a", "/a", "~/a", "a.jsonl", "x/a.parquet", "a/*", "a/b/c", ".", "a/", "t.jinja"]
)
def test_looks_local(path: str) -> None:
    assert looks_local(path)


@pytest.mark.parametrize("path", ["gpt2", "Qwen/Qwen3.8-27B", "HuggingFaceH4/ultrachat_200k"])
def test_looks_like_a_hub_id(path: str) -> None:
    assert not looks_local(path)


@pytest.mark.parametrize(
    "address", ["s3://bucket/a.jsonl", "gs://b/*.json", "hf://datasets/o/n", "https://x.org/a.csv"]
)
def test_addresses_stay_as_they_are(folder: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PART", "part")
    text = (
        f"model: {{path: m}}\ndata: {{train: '{address}', eval: ['file:///x/$PART.jsonl', 's3://$PART/a$$b.jsonl']}}\n"
    )
    Path("r.yaml").write_text(text)
    data = load_recipe(Path("r.yaml")).recipe.data
    assert is_address(address)
    assert [source.path for source in data.train] == [address]
    assert [source.path for source in data.eval] == ["/x/part.jsonl", "s3://part/a$b.jsonl"]
    Path("again.yaml").write_text(to_yaml(load_recipe(Path("r.yaml")).recipe))
    assert load_recipe(Path("again.yaml")).recipe.data == data


@pytest.mark.parametrize("path", ["a:b", "/a://b", "builtin:chat", "owner/name", "./s3://a", "a"])
def test_what_is_no_address(path: str) -> None:
    assert not is_address(path)


def test_inputs_are_relative_to_the_file_and_outputs_to_the_working_directory(folder: Path) -> None:
    (folder / "recipes").mkdir()
    Path("recipes/r.yaml").write_text(
        "model: {path: ./model, tokenizer: ../tokens/, chat_template: t}\n"
        "data: {train: [a.jsonl, {path: sub/*.json}], eval: b.jsonl, cache_dir: cache}\noutput_dir: runs/x\n"
    )
    recipe = load_recipe(Path("recipes/r.yaml")).recipe
    assert recipe.model.path == f"{folder}/recipes/model"
    assert recipe.model.tokenizer == f"{folder}/tokens"
    assert recipe.model.chat_template == f"{folder}/recipes/t"
    assert [source.path for source in recipe.data.train] == [
        f"{folder}/recipes/a.jsonl",
        f"{folder}/recipes/sub/*.json",
    ]
    assert recipe.data.eval[0].path == f"{folder}/recipes/b.jsonl"
    assert recipe.data.cache_dir == f"{folder}/cache"
    assert recipe.output_dir == f"{folder}/runs/x"


def test_a_folder_that_exists_wins_over_a_hub_id(folder: Path, load: Callable[..., Loaded]) -> None:
    text = "model: {path: org/model}\ndata: {train: org/data}\n"
    assert load(text).recipe.model.path == "org/model"
    (folder / "org" / "model").mkdir(parents=True)
    assert load(text).recipe.model.path == f"{folder}/org/model"


def test_builtins_are_left_alone(load: Callable[..., Loaded]) -> None:
    recipe = load("model: {path: 'builtin:tiny-hybrid'}\ndata: {train: 'builtin:chat'}").recipe
    assert (recipe.model.path, recipe.data.train[0].path) == ("builtin:tiny-hybrid", "builtin:chat")


def test_defaults_are_absolute_too(folder: Path, load: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    recipe = load().recipe
    assert recipe.output_dir == f"{folder}/runs/sftune"
    assert recipe.data.cache_dir == "/home/someone/.cache/sftune"


def test_variables_and_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("DATA", "/data")
    assert expanded("~/x", "here") == "/home/someone/x"
    assert expanded("$DATA/${DATA}x", "here") == "/data//datax"
    assert expanded("a$$b$", "here") == "a$b$"


@pytest.mark.parametrize("path", ["/a$b", "/a$$b", "/${HOME}", "/a b~c$"])
def test_escaped_is_undone_by_expanded(path: str) -> None:
    assert expanded(escaped(path), "here") == path


@pytest.mark.parametrize(
    ("path", "what"), [("$NO_SUCH/x", "$NO_SUCH isn't set"), ("~nobody-here/x", "no user's home"), ("a\0b", "U+0000")]
)
def test_paths_that_can_not_be(path: str, what: str) -> None:
    with pytest.raises(RecipeError, match="here") as caught:
        expanded(path, "here")
    assert what in caught.value.what


def test_a_variable_that_is_not_set_names_the_line(refused: Callable[..., SftError]) -> None:
    error = refused("model: {path: org/model}\ndata:\n  train:\n    - path: $NO_SUCH/x.jsonl\n")
    assert error.where == "r.yaml:4: data.train.0.path"
