"""--set: typed by the schema, merged, and named in its errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sft_cli.errors import RecipeError, SftError
from sft_cli.recipe.layer import lookup
from sft_cli.recipe.load import Loaded, load_recipe
from sft_cli.recipe.places import split

MINIMAL = "model: {path: org/model}\ndata:\n  train:\n    - {path: org/a, weight: 2.0}\n    - org/b\n"


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("batching.tokens=512", "batching.tokens", 512),
        ("batching.tokens = 512", "batching.tokens", 512),
        ("optimizer.learning_rate=1e-5", "optimizer.learning_rate", 1e-5),
        ("optimizer.betas=[0.8, 0.9]", "optimizer.betas", (0.8, 0.9)),
        ("evaluate={}", "evaluate.at_start", False),
        ("train.max_grad_norm=null", "train.max_grad_norm", None),
        ("train.max_grad_norm=", "train.max_grad_norm", None),
        ("model.revision=0123", "model.revision", "0123"),
        ("model.revision=true", "model.revision", "true"),
        ("model.revision='main'", "model.revision", "main"),
        ("model.revision=null", "model.revision", None),
        ("model.revision=@x", "model.revision", "@x"),
        ("kernels.strict=false", "kernels.strict", False),
        ("sharding.activation_checkpointing.layers=4", "sharding.activation_checkpointing.layers", 4),
        ("data.train.0.weight=3", "data.train.0.weight", 3),
        ("data.train.1=org/c", "data.train.1.path", "org/c"),
        ("data.train.2.path=org/c", "data.train.2.path", "org/c"),
        ("data.train=org/c", "data.train.0.path", "org/c"),
        ("data.eval.0=org/c", "data.eval.0.path", "org/c"),
        ("model.path=a=b", "model.path", "a=b"),
    ],
)
def test_values(load: Callable[..., Loaded], text: str, key: str, value: Any) -> None:
    found = lookup(load(MINIMAL, text).recipe.model_dump(mode="python"), split(key)) if "betas" in key else None
    dumped = load(MINIMAL, text).recipe.model_dump(mode="json")
    assert (found if "betas" in key else lookup(dumped, split(key))) == value


def test_a_section_is_merged(load: Callable[..., Loaded]) -> None:
    recipe = load(MINIMAL + "batching: {mode: padding}\n", "batching={tokens: 512}").recipe
    assert (recipe.batching.mode, recipe.batching.tokens) == ("padding", 512)


def test_an_item_keeps_its_other_keys(load: Callable[..., Loaded]) -> None:
    sources = load(MINIMAL, "data.train.0.path=org/c").recipe.data.train
    assert [(source.path, source.weight) for source in sources] == [("org/c", 2.0), ("org/b", 1.0)]


def test_the_last_one_wins(load: Callable[..., Loaded]) -> None:
    assert load(MINIMAL, "train.seed=1", "train.seed=2").recipe.train.seed == 2


def test_paths_are_relative_to_the_working_directory(folder: Path, load: Callable[..., Loaded]) -> None:
    Path("base").mkdir()
    Path("base/b.yaml").write_text(MINIMAL)
    recipe = load("extends: base/b.yaml", "data.train=*.jsonl", "output_dir=here", "data.eval.0.path=./e").recipe
    assert recipe.data.train[0].path == f"{folder}/*.jsonl"
    assert recipe.data.eval[0].path == f"{folder}/e"
    assert recipe.output_dir == f"{folder}/here"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("batching.tokens", "not `section.key=value`"),
        ("=3", "not `section.key=value`"),
        ("a..b=3", "not `section.key=value`"),
        ("extends=x.yaml", "can't be set on the command line"),
        ("batching.tokens=[1", "not closed"),
        ("batching.tokens=abc", 'expected a whole number above 1 and of at most 16777216, got the text "abc"'),
        ("batching.tokns=3", "no key `tokns` in `batching`"),
        ("tokens=3", "`tokens` belongs in `batching`"),
        ("lora.r=3", "no LoRA"),
        ("launch.gpus.0=1", "launch.gpus is not a list"),
        ("data.train.5.path=x", "item 5 can't be set"),
        ("data.train.0.weight=x", "expected a number above 0"),
        ("schedule.name=cosin", "expected one of constant"),
        ("model=org/x", "a section, not a single value"),
        ("model.path=$NO_SUCH", "isn't set"),
        ("batching={tokens: 512, tokens: 5}", "the key stands twice"),
    ],
)
def test_errors_name_the_set(refused: Callable[..., SftError], text: str, what: str) -> None:
    error = refused(MINIMAL, text)
    assert error.where is not None
    assert error.where.startswith(f"--set {text.split('=')[0]}")
    assert what in error.what
    assert error.fix
    assert error.exit_code == 2


def test_a_long_value_is_cut_in_the_error(refused: Callable[..., SftError]) -> None:
    assert len(refused(MINIMAL, f"batching.tokens={'x' * 500}").where or "") < 80


def test_an_index_that_no_list_reaches(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no list is longer"):
        load_recipe(Path("builtin:tiny"), ["data.train.99999999999999999=x"])
