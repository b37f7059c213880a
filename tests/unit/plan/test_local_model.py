from __future__ import annotations

import json
from pathlib import Path

import pytest

from sft_cli.errors import ModelError
from sft_cli.plan.local_model import has_tokenizer, has_weights, missing_shards, read_config, require_weights

WHERE = "recipe.yaml:2: model.path"


def write_index(folder: Path, *files: str) -> None:
    weight_map = {f"layer.{index}": file for index, file in enumerate(files)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("text", ["", "{", "[1]", "\N{REPLACEMENT CHARACTER}"])
def test_a_config_that_is_no_json_object(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-16")
    with pytest.raises(ModelError, match=r"config\.json is not") as caught:
        read_config(tmp_path, WHERE)
    assert caught.value.where == WHERE


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        read_config(tmp_path, WHERE)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="gone is not there"):
        read_config(tmp_path / "gone", WHERE)
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="is a file, not a model folder"):
        read_config(tmp_path / "file", WHERE)


def test_no_weights_offers_random_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no model\.safetensors") as caught:
        require_weights(tmp_path, WHERE)
    assert caught.value.fix is not None
    assert "model.weights: random" in caught.value.fix


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelError, match="pickle") as caught:
        require_weights(tmp_path, WHERE)
    assert caught.value.fix is not None
    assert "save_pretrained" in caught.value.fix


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_index(tmp_path, "a.safetensors", "b.safetensors")
    (tmp_path / "a.safetensors").touch()
    assert missing_shards(tmp_path) == ["b.safetensors"]
    assert not has_weights(tmp_path)
    with pytest.raises(ModelError, match=r"b\.safetensors"):
        require_weights(tmp_path, WHERE)
    (tmp_path / "b.safetensors").touch()
    assert has_weights(tmp_path)
    require_weights(tmp_path, WHERE)


@pytest.mark.parametrize("text", ["[]", "{", "{}", '{"weight_map": ["a"]}', '{"weight_map": {"a": 5}}'])
def test_a_damaged_index(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError, match="not an index"):
        require_weights(tmp_path, WHERE)


def test_a_single_file_of_weights(tmp_path: Path) -> None:
    assert not has_weights(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert has_weights(tmp_path)
    require_weights(tmp_path, WHERE)


def test_a_tokenizer_is_seen(tmp_path: Path) -> None:
    assert not has_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").touch()
    assert has_tokenizer(tmp_path)
