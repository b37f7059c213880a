from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models import CONFIGS, make_model
from transformers import AutoModelForCausalLM

import sft_cli.model.safetensors_writer as writer_module
from sft_cli.errors import CheckpointError
from sft_cli.model.export import export
from sft_cli.model.language_model import LanguageModel
from sft_cli.model.safetensors_folder import SafetensorsFolder
from sft_cli.model.weights import load_weights
from sft_cli.plan.local_model import SAFETENSORS_INDEX

pytestmark = pytest.mark.usefixtures("lone_rank")


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("the tokenizer's own")
    (folder / "notes.txt").write_text("not a tokenizer's file")
    return folder


def save(target: Path, model: LanguageModel, tokenizer_folder: Path, **options: Any) -> dict[str, torch.Tensor]:
    own = next(config for config in CONFIGS.values() if config["model_type"] == model.config.model_type)
    config = options.pop("config", own)
    options = {"source": None, "chat_template": None, **options}
    export(target, model, config, tokenizer_folder=tokenizer_folder, **options)
    return {name: tensor for file in target.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("family", list(CONFIGS))
def test_transformers_loads_what_was_trained(tmp_path: Path, tokenizer_folder: Path, family: str) -> None:
    model = make_model(family)
    save(tmp_path / "export", model, tokenizer_folder)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    ids = torch.arange(1, 40).view(1, -1)
    with torch.no_grad():
        expected = model({"input_ids": ids, "position_ids": torch.arange(39).view(1, -1)})
        torch.testing.assert_close(loaded(ids).logits, expected, atol=1e-4, rtol=1e-4)


def test_random_weights_take_the_dtype_of_the_config(tmp_path: Path, tokenizer_folder: Path) -> None:
    tensors = save(
        tmp_path / "export", make_model("llama"), tokenizer_folder, config={**CONFIGS["llama"], "dtype": "bfloat16"}
    )
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


def test_names_shapes_and_dtypes_are_the_sources(tmp_path: Path, tokenizer_folder: Path) -> None:
    """Mixed dtypes, and tensors that nobody trains: all come back."""
    model = make_model("qwen3_5")
    source = {name: p.detach().bfloat16() for name, p in model.transformers_named_parameters()}
    source["model.layers.0.linear_attn.A_log"] = source["model.layers.0.linear_attn.A_log"].float()
    source["mtp.layers.0.weight"] = torch.randn(3, 2)
    source["mtp.layers.0.scale"] = torch.randn(5).to(torch.float8_e4m3fn)
    folder = tmp_path / "source"
    folder.mkdir()
    save_file(source, folder / "model.safetensors")
    (folder / "generation_config.json").write_text('{"top_k": 20}')
    load_weights(model, SafetensorsFolder(folder))
    tensors = save(tmp_path / "export", model, tokenizer_folder, source=SafetensorsFolder(folder))
    assert {n: (t.shape, t.dtype) for n, t in tensors.items()} == {n: (t.shape, t.dtype) for n, t in source.items()}
    assert all(torch.equal(tensors[n].view(torch.uint8), t.view(torch.uint8)) for n, t in source.items())
    assert json.loads((tmp_path / "export" / "generation_config.json").read_text()) == {"top_k": 20}


def test_a_tied_head_in_the_source_is_written_as_trained(tmp_path: Path, tokenizer_folder: Path) -> None:
    model = make_model("qwen3")
    source = {name: p.detach().clone() for name, p in model.transformers_named_parameters()}
    source["lm_head.weight"] = source["model.embed_tokens.weight"].clone()
    folder = tmp_path / "source"
    folder.mkdir()
    save_file(source, folder / "model.safetensors")
    with torch.no_grad():
        model.embedding.weight.add_(1.0)
    tensors = save(tmp_path / "export", model, tokenizer_folder, source=SafetensorsFolder(folder))
    assert torch.equal(tensors["lm_head.weight"], source["lm_head.weight"] + 1)
    assert torch.equal(tensors["model.embed_tokens.weight"], tensors["lm_head.weight"])


def test_a_large_model_comes_in_shards(tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "SHARD_BYTES", 100_000)
    model = make_model("llama")
    tensors = save(tmp_path / "export", model, tokenizer_folder)
    index = json.loads((tmp_path / "export" / SAFETENSORS_INDEX).read_text())
    assert len(set(index["weight_map"].values())) > 2
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert set(tensors) == set(index["weight_map"])
    AutoModelForCausalLM.from_pretrained(tmp_path / "export")


def test_the_tokenizer_and_the_template_that_was_trained_with(tmp_path: Path, tokenizer_folder: Path) -> None:
    target = tmp_path / "export"
    save(target, make_model("llama"), tokenizer_folder, chat_template="the recipe's")
    assert (target / "tokenizer.json").read_text() == "{}"
    assert (target / "chat_template.jinja").read_text() == "the recipe's"
    assert not (target / "notes.txt").exists()


@pytest.mark.parametrize("has_code", [True, False])
def test_code_that_the_tokenizer_names_goes_along(tmp_path: Path, tokenizer_folder: Path, has_code: bool) -> None:
    (tokenizer_folder / "tokenization_own.py").write_text("x = 1")
    (tokenizer_folder / "deeper").mkdir()
    (tokenizer_folder / "deeper" / "other.py").write_text("x = 2")
    auto_map = {"auto_map": {"AutoTokenizer": [None, "tokenization_own.Own"]}} if has_code else {}
    (tokenizer_folder / "tokenizer_config.json").write_text(json.dumps(auto_map))
    target = tmp_path / "export"
    save(target, make_model("llama"), tokenizer_folder)
    assert [file.name for file in target.rglob("*.py")] == (["tokenization_own.py"] if has_code else [])


def test_an_older_export_is_replaced_whole(tmp_path: Path, tokenizer_folder: Path) -> None:
    target = tmp_path / "export"
    target.mkdir()
    (target / "stale.txt").write_text("old")
    save(target, make_model("llama"), tokenizer_folder)
    assert not (target / "stale.txt").exists()
    assert not list(tmp_path.glob(".export*"))


def test_without_room_nothing_is_written(
    tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, before = make_model("llama"), sorted(tmp_path.rglob("*"))
    needed = sum(parameter.nbytes for parameter in model.parameters())
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=needed - 1))
    with pytest.raises(CheckpointError, match=r"MiB free, and .* are needed \(export "):
        save(tmp_path / "export", model, tokenizer_folder)
    assert sorted(tmp_path.rglob("*")) == before
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=needed))
    save(tmp_path / "export", model, tokenizer_folder)
