"""Models and tokenizers from a hub: what is downloaded, and what is refused before it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_hub import FakeHub, fake_hub, point_at

from sft_cli.errors import ModelError
from sft_cli.plan.model_facts import fetch_weights, find_model, find_tokenizer
from sft_cli.plan.shapes import read_shape
from sft_cli.recipe.schema import ModelSection

CONFIG = json.dumps(read_shape("tiny-hybrid"))
# No two files are alike: the hub cache fetches one content once.
TOKENIZER = {"tokenizer.json": "{}", "tokenizer_config.json": "{ }", "chat_template.jinja": "x"}
INDEX = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
SHARDS = {"model-1.safetensors": "1", "model-2.safetensors": "2"}


@pytest.fixture
def the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with fake_hub() as found:
        point_at(monkeypatch, found.url, tmp_path)
        yield found


def section(**keys: Any) -> ModelSection:
    return ModelSection(**{"path": "owner/model", **keys})


def test_only_what_is_needed_is_downloaded_and_the_weights_last(the_hub: FakeHub) -> None:
    needless = [
        "model.fp16.safetensors", "consolidated.safetensors", "original/consolidated.00.safetensors",
        "original/params.json", "pytorch_model.bin", "onnx/config.json", "modeling_x.py", "README.md", "x.gguf",
    ]  # fmt: skip
    files = {"config.json": CONFIG, **TOKENIZER, "model.safetensors.index.json": INDEX, **SHARDS}
    the_hub.model("owner/model", {**files, **{name: name for name in needless}})
    facts = find_model(section(), download=True)
    assert the_hub.downloaded() == sorted(["config.json", *TOKENIZER, "model.safetensors.index.json"])
    assert find_tokenizer(section(), download=True) == facts.folder
    fetch_weights(section(), facts)
    assert the_hub.downloaded() == sorted(files)
    asked = len(the_hub.requests)
    fetch_weights(section(), facts)
    assert find_model(section(), download=True).because == "in the local hub cache"
    assert len(the_hub.requests) == asked, "what is in the cache needs no network"


def test_one_file_of_weights(the_hub: FakeHub) -> None:
    the_hub.model("owner/model", {"config.json": CONFIG, "model.safetensors": "1", "consolidated.safetensors": "1"})
    facts = find_model(section(), download=True)
    fetch_weights(section(), facts)
    assert the_hub.downloaded() == ["config.json", "model.safetensors"]


def test_random_weights_need_no_download_of_any(the_hub: FakeHub) -> None:
    the_hub.model("owner/model", {"config.json": CONFIG, "pytorch_model.bin": "x"})
    facts = find_model(section(weights="random"), download=True)
    fetch_weights(section(weights="random"), facts)
    assert the_hub.downloaded() == ["config.json"]


def test_a_repository_without_a_config(the_hub: FakeHub) -> None:
    the_hub.model("owner/model", {"model.safetensors": "x", "README.md": "x"})
    with pytest.raises(ModelError, match="owner/model holds neither a config nor a tokenizer"):
        find_model(section(), download=True)


def test_the_revision_counts(the_hub: FakeHub) -> None:
    model = the_hub.model("owner/model", {"config.json": CONFIG, "model.safetensors": "old", **TOKENIZER})
    old = model.refs["main"]
    new = model.commit({"config.json": CONFIG, "model.safetensors": "new", **TOKENIZER}, "v2")
    for revision, commit in (("v2", new), (old, old), (None, new)):
        facts = find_model(section(revision=revision), download=True)
        assert Path(str(facts.folder)).name == commit
        assert find_tokenizer(section(revision=revision), download=True) == facts.folder
    with pytest.raises(ModelError, match="owner/model has no revision v9"):
        find_model(section(revision="v9"), download=True)


def test_weights_are_those_of_the_config_also_where_the_branch_has_moved_on(the_hub: FakeHub) -> None:
    model = the_hub.model("owner/model", {"config.json": CONFIG, "model.safetensors": "old"})
    facts = find_model(section(), download=True)
    model.commit({"config.json": CONFIG, "model.safetensors": "new"})
    fetch_weights(section(), facts)
    assert Path(str(facts.folder), "model.safetensors").read_text() == "old"


def test_a_tokenizer_of_its_own_comes_from_its_own_main_branch(the_hub: FakeHub) -> None:
    the_hub.model("owner/words", {**TOKENIZER, "model.safetensors": "large"})
    folder = find_tokenizer(section(tokenizer="owner/words", revision="v2"), download=True)
    assert Path(str(folder), "tokenizer.json").is_file()
    assert the_hub.downloaded() == sorted(TOKENIZER)
    the_hub.model("owner/wordless", {"config.json": CONFIG})
    with pytest.raises(ModelError, match="has no tokenizer") as caught:
        find_tokenizer(section(tokenizer="owner/wordless"), download=True)
    assert caught.value.where == "model.tokenizer"
    with pytest.raises(ModelError, match="no owner/gone that this account can see"):
        find_tokenizer(section(tokenizer="owner/gone"), download=True)


@pytest.mark.parametrize(
    ("weights", "what"),
    [
        (["pytorch_model.bin"], "has its weights only as pickle files"),
        (["pytorch_model-1-of-2.bin", "pytorch_model.bin.index.json"], "has its weights only as pickle files"),
        (["model.pth", "other.safetensors"], "has its weights only as pickle files"),
        (["consolidated.safetensors"], r"has no model\.safetensors"),
        (["x.gguf"], r"has no model\.safetensors"),
        ([], r"has no model\.safetensors"),
    ],
)
def test_weights_that_can_not_be_read_are_refused_before_any_download(
    the_hub: FakeHub, weights: list[str], what: str
) -> None:
    the_hub.model("owner/model", {"config.json": CONFIG, **dict.fromkeys(weights, "x")})
    with pytest.raises(ModelError, match=what) as caught:
        find_model(section(), download=True)
    assert the_hub.downloaded() == []
    assert caught.value.exit_code == 2
    assert ("save_pretrained" in str(caught.value.fix)) == ("pickle" in what)


def test_an_unsupported_model_is_refused_before_its_weights(the_hub: FakeHub) -> None:
    quantised = json.dumps({**read_shape("tiny-hybrid"), "quantization_config": {}})
    the_hub.model("owner/model", {"config.json": quantised, "model.safetensors": "1"})
    with pytest.raises(ModelError, match="quantised"):
        find_model(section(), download=True)
    assert the_hub.downloaded() == ["config.json"]


def test_a_download_that_breaks_off_can_be_taken_up_again(the_hub: FakeHub) -> None:
    model = the_hub.model("owner/model", {"config.json": CONFIG, "model.safetensors.index.json": INDEX, **SHARDS})
    facts = find_model(section(), download=True)
    shard = model.commits[model.refs["main"]].pop("model-2.safetensors")
    with pytest.raises(ModelError):
        fetch_weights(section(), facts)
    model.commits[model.refs["main"]]["model-2.safetensors"] = shard
    fetch_weights(section(), find_model(section(), download=True))
    assert "model-2.safetensors" in the_hub.downloaded()


@pytest.mark.parametrize("offline", [True, False])
def test_without_the_hub(the_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, offline: bool) -> None:
    model = the_hub.model("owner/model", {"config.json": CONFIG, "model.safetensors": "1", **TOKENIZER})
    fetch_weights(section(), find_model(section(), download=True))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    model.status = None if offline else 500
    facts = find_model(section(), download=True)
    assert find_tokenizer(section(), download=True) == facts.folder
    fetch_weights(section(), facts)
    with pytest.raises(
        ModelError, match="owner/other is not in the local cache, and HF_HUB_OFFLINE" if offline else "owner/other"
    ):
        find_model(section(path="owner/other"), download=True)


def test_a_config_without_its_weights_is_not_enough_without_the_hub(
    the_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_hub.model("owner/model", {"config.json": CONFIG, "model.safetensors": "1"})
    find_model(section(), download=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert find_model(section(weights="random"), download=True).folder is not None
    with pytest.raises(ModelError, match="owner/model is only partly in the local cache, and HF_HUB_OFFLINE"):
        find_model(section(), download=True)


def test_a_slip_in_a_name_is_noticed(the_hub: FakeHub) -> None:
    with pytest.raises(ModelError, match=r"no Qwen/Qwen3\.8-27b that") as caught:
        find_model(section(path="Qwen/Qwen3.8-27b"), download=True)
    assert str(caught.value.fix).startswith("Did you mean Qwen/Qwen3.8-27B? ")
