"""The saved recipe.yaml reads back as the same recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sft_cli.recipe.dump import to_yaml
from sft_cli.recipe.load import load_recipe
from sft_cli.recipe.schema import Recipe
from sft_cli.recipe.yaml_lines import parse

TEXT = st.one_of(
    st.sampled_from(
        ["off", "1e-5", "0o10", "010", "null", "~", "true", "Yes", "1_000", "12:30", "<<", "=", "a: b", "# c", "'", '"']
    ),
    st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1, max_size=20),
)
# A directory that is not there, so that no path of a hub id's spelling exists beside the recipe.
PATHS = TEXT.map(lambda text: "/nowhere/" + text.replace("/", "_").replace("..", "_").rstrip(".") + "x")
RECIPES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "model": st.fixed_dictionaries(
            {"path": st.sampled_from(["org/model", "builtin:tiny-hybrid"]) | PATHS},
            optional={
                "dtype": st.sampled_from(["bfloat16", "float32"]),
                "tokenizer": st.none() | PATHS,
                "chat_template": st.none() | PATHS,
            },
        ),
        "data": st.fixed_dictionaries(
            {
                "train": st.lists(
                    st.fixed_dictionaries(
                        {"path": PATHS}, optional={"weight": st.floats(0.01, 100), "format": st.just("sharegpt")}
                    ),
                    min_size=1,
                    max_size=3,
                ),
                "cache_dir": PATHS,
            },
            optional={"max_length": st.none() | st.integers(2, 8192), "bad_rows": st.sampled_from(["error", "skip"])},
        ),
        "output_dir": PATHS,
    },
    optional={
        "optimizer": st.fixed_dictionaries(
            {},
            optional={
                "learning_rate": st.floats(1e-300, 1e300),
                "betas": st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)),
                "weight_decay": st.floats(0, 1e6),
            },
        ),
        "schedule": st.fixed_dictionaries(
            {}, optional={"name": st.sampled_from(["wsd", "linear"]), "warmup": st.floats(0, 0.99)}
        ),
        "train": st.fixed_dictionaries(
            {}, optional={"max_grad_norm": st.none() | st.floats(1e-3, 1e3), "seed": st.integers(0, 2**63 - 1)}
        ),
        "sharding": st.just({"activation_checkpointing": {"layers": 3}}),
        "launch": st.fixed_dictionaries({"gpus": st.integers(1, 64)}),
    },
)


@given(values=RECIPES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_round_trip(tmp_path: Path, values: dict[str, Any]) -> None:
    recipe = Recipe.model_validate(values)
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe), encoding="utf-8", newline="")
    assert load_recipe(tmp_path / "recipe.yaml").recipe == recipe


def test_only_what_is_not_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    Path("r.yaml").write_text("model: {path: org/model}\ndata: {train: chat.jsonl}\ntrain: {epochs: 1, seed: 3}\n")
    assert parse(to_yaml(load_recipe(Path("r.yaml")).recipe), "dump").values == {
        "model": {"path": "org/model"},
        "data": {"train": [{"path": f"{tmp_path}/chat.jsonl"}], "cache_dir": "/home/someone/.cache/sftune"},
        "train": {"seed": 3},
        "output_dir": f"{tmp_path}/runs/sftune",
    }


def test_the_saved_recipe_means_the_same_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("r.yaml").write_text("extends: builtin:tiny\ndata: {train: ../chat.jsonl}\nmodel: {tokenizer: ./t}\n")
    recipe = load_recipe(Path("r.yaml"), ["optimizer.learning_rate=1e-5"]).recipe
    saved = tmp_path / "there" / "recipe.yaml"
    saved.write_text(to_yaml(recipe))
    monkeypatch.chdir("/")
    assert load_recipe(saved).recipe == recipe


@pytest.mark.parametrize("text", ["a\x85b", "a\u2028b", "\u2029", "naïve 🙂", " x ", "a: b", "off", "1e-5", "#"])
def test_odd_names_come_back(tmp_path: Path, text: str) -> None:
    recipe = Recipe.model_validate(
        {"model": {"path": "org/model"}, "data": {"train": "org/data"}, "output_dir": f"/nowhere/{text}"}
    )
    path = tmp_path / "recipe.yaml"
    path.write_text(to_yaml(recipe), encoding="utf-8")
    assert load_recipe(path).recipe.output_dir == f"/nowhere/{text}"
