from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sft_cli.errors import ModelError
from sft_cli.plan import hub
from sft_cli.plan.model_facts import find_model, find_tokenizer
from sft_cli.plan.shapes import names, read_shape
from sft_cli.recipe.places import Place, Places
from sft_cli.recipe.schema import ModelSection

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PLACES = Places(
    "recipe.yaml",
    {("model", "path"): Place("recipe.yaml", 2, 0), ("model", "tokenizer"): Place("recipe.yaml", 3, 0)},
)


@pytest.fixture(autouse=True)
def hub_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and a network that must not be used."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))

    def refuse(repo: hub.Repo) -> hub.Listing:
        raise ModelError("a download was tried", where="the network", fix="Don't.")

    monkeypatch.setattr(hub, "look_up", refuse)
    return tmp_path / "cache"


def section(path: str | Path, **keys: Any) -> ModelSection:
    return ModelSection(path=str(path), **keys)


def write_model(folder: Path, config: dict[str, Any], *files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for file in files:
        (folder / file).touch()
    return folder


def cache_model(cache: Path, hub_id: str, *files: str) -> Path:
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return write_model(repository / "snapshots" / COMMIT, read_shape("llama-3.1-8b"), *files)


@pytest.mark.parametrize("name", names())
def test_a_builtin_is_random_whatever_the_recipe_says(name: str) -> None:
    facts = find_model(section(f"builtin:{name}"))
    assert (facts.weights, facts.folder, facts.config) == ("random", None, read_shape(name))
    assert facts.parameters > 1_000_000


def test_an_unknown_builtin_names_the_nearest() -> None:
    with pytest.raises(ModelError, match=r"no model builtin:qwen3\.8-27B ships") as caught:
        find_model(section("builtin:qwen3.8-27B"), PLACES)
    assert caught.value.where == "recipe.yaml:2: model.path"
    assert caught.value.fix == "Did you mean builtin:qwen3.8-27b?"
    with pytest.raises(ModelError) as caught:
        find_model(section("builtin:gpt-17"))
    assert "builtin:tiny-hybrid" in str(caught.value.fix)


def test_a_local_folder(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", read_shape("llama-3.1-8b"), "model.safetensors")
    facts = find_model(section(folder))
    assert (facts.folder, facts.weights, facts.family) == (str(folder), "pretrained", "llama")
    assert facts.parameters == 8_030_261_248


def test_a_local_folder_without_weights(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", read_shape("llama-3.1-8b"))
    assert find_model(section(folder, weights="random")).weights == "random"
    with pytest.raises(ModelError, match=r"no model\.safetensors") as caught:
        find_model(section(folder), PLACES)
    assert caught.value.where == "recipe.yaml:2: model.path"


def test_an_unsupported_model_is_refused_before_its_weights(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", {"model_type": "llava", "text_config": {}})
    with pytest.raises(ModelError, match="llava is made of several models"):
        find_model(section(folder))


def test_a_flat_qwen3_5_config_gets_the_name_of_the_text_model(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", {**read_shape("tiny-hybrid"), "model_type": "qwen3_5"})
    facts = find_model(section(folder, weights="random"))
    assert (facts.family, facts.config["model_type"]) == ("qwen3_5", "qwen3_5_text")


def test_a_local_path_that_is_not_there_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=str(tmp_path / "models/my/run")):
        find_model(section("models/my/run"))
    with pytest.raises(ModelError, match=str(tmp_path / "gone")):
        find_model(section(tmp_path / "gone"))


def test_a_slip_in_a_hub_id_is_noticed_without_a_network() -> None:
    with pytest.raises(ModelError) as caught:
        find_model(section("Qwen/Qwen3.8-27B-"))
    assert caught.value.fix == "Did you mean Qwen/Qwen3.8-27B?"


def test_a_hub_model_whose_shape_ships_is_planned_offline() -> None:
    facts = find_model(section("Qwen/Qwen3.8-27B"))
    assert (facts.weights, facts.folder, facts.parameters) == ("pretrained", None, 26_895_998_464)
    assert "builtin:qwen3.8-27b" in facts.because


def test_a_hub_model_whose_shape_does_not_ship() -> None:
    with pytest.raises(ModelError, match="owner/model is not in the local hub cache") as caught:
        find_model(section("owner/model"))
    assert "hf download owner/model" in str(caught.value.fix)


def test_random_weights_of_a_shipped_shape_need_no_download() -> None:
    facts = find_model(section("Qwen/Qwen3.5-9B", weights="random"), download=True)
    assert (facts.weights, facts.config) == ("random", read_shape("qwen3.5-9b"))


def test_training_from_the_hub_downloads() -> None:
    with pytest.raises(ModelError, match="a download was tried"):
        find_model(section("Qwen/Qwen3.8-27B"), download=True)


def test_a_cached_hub_model_needs_no_download(hub_cache: Path) -> None:
    snapshot = cache_model(hub_cache, "owner/model", "model.safetensors", "tokenizer.json")
    assert find_model(section("owner/model"), download=True).folder == str(snapshot)
    assert find_tokenizer(section("owner/model"), download=True) == str(snapshot)


def test_a_cached_config_is_enough_to_plan_and_not_to_train(hub_cache: Path) -> None:
    snapshot = cache_model(hub_cache, "owner/model")
    assert find_model(section("owner/model")).folder is None
    assert find_model(section("owner/model", weights="random")).folder == str(snapshot)
    with pytest.raises(ModelError, match="a download was tried"):
        find_model(section("owner/model"), download=True)


def test_the_tokenizer_of_a_folder(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", read_shape("llama-3.1-8b"))
    with pytest.raises(ModelError, match="has no tokenizer") as caught:
        find_tokenizer(section(folder), PLACES)
    assert caught.value.where == "recipe.yaml:2: model.path"
    with pytest.raises(ModelError, match="is not there") as caught:
        find_tokenizer(section(folder, tokenizer=str(tmp_path / "gone")), PLACES)
    assert caught.value.where == "recipe.yaml:3: model.tokenizer"
    (folder / "tokenizer.json").touch()
    assert find_tokenizer(section("builtin:qwen3.8-27b", tokenizer=str(folder))) == str(folder)


def test_the_tiny_model_brings_its_tokenizer() -> None:
    folder = find_tokenizer(section("builtin:tiny-hybrid"), download=True)
    assert folder is not None
    assert (Path(folder) / "tokenizer.json").is_file()


def test_a_builtin_without_a_tokenizer_can_be_planned_and_not_trained() -> None:
    assert find_tokenizer(section("builtin:qwen3.8-27b")) is None
    with pytest.raises(ModelError, match="comes without a tokenizer"):
        find_tokenizer(section("builtin:qwen3.8-27b"), download=True)


def test_a_hub_tokenizer_that_is_not_cached() -> None:
    assert find_tokenizer(section("owner/model")) is None
    with pytest.raises(ModelError, match="neither a hub id nor a folder"):
        find_tokenizer(section("builtin:tiny-hybrid", tokenizer="a/b/c"))


def test_a_config_alone_is_enough_for_random_weights(tmp_path: Path) -> None:
    path = tmp_path / "shape.json"
    path.write_text(json.dumps(find_model(ModelSection(path="builtin:tiny-hybrid")).config))
    facts = find_model(ModelSection(path=str(path), weights="random"))
    assert (facts.folder, facts.weights, facts.family) == (None, "random", "qwen3_5")
    with pytest.raises(ModelError, match="a config without weights"):
        find_model(ModelSection(path=str(path)))
