"""A tiny vision-language model as transformers writes it, through the command line: its text model is trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models import CONFIGS, vision_language_config
from support.sftune import sftune, tiny
from torch import Tensor

CONFIG = {
    **vision_language_config("qwen3_5"),
    "dtype": "bfloat16",
    "vision_config": {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 64},
}
CONFIG["text_config"] = {
    **CONFIGS["qwen3_5"],
    "vocab_size": 1024,
    "initializer_range": 0.1,
    "dtype": "bfloat16",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """In bfloat16, one gate in float32; and layers for multi-token prediction, which transformers leaves out."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.manual_seed(0)
    keys = {key: value for key, value in CONFIG.items() if key != "model_type"}
    config = AutoConfig.for_model(CONFIG["model_type"], **keys)
    folder = tmp_path / "source"
    AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    tensors = tensors_of(folder)
    gate = "model.language_model.layers.0.linear_attn.A_log"
    tensors[gate] = tensors[gate].float()
    tensors["mtp.fc.weight"] = torch.randn(64, 128).bfloat16()
    tensors["mtp.layers.0.input_layernorm.weight"] = torch.randn(64)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "generation_config.json").write_text('{"top_k": 20}', encoding="utf-8")
    (folder / "preprocessor_config.json").write_text("{}", encoding="utf-8")
    return folder


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.long
def test_the_text_is_trained_and_the_rest_is_carried_bit_for_bit(source: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

    changes = {
        "model.path": str(source),
        "model.weights": "pretrained",
        "model.tokenizer": "builtin:tiny-hybrid",
        "launch.gpus": "2",
        "optimizer.learning_rate": "1e-2",
    }
    ended = sftune("train", *tiny(tmp_path, **changes), cwd=tmp_path, timeout_seconds=400)
    assert ended.code == 0, ended.err
    assert "GiB of weights" in ended.out
    export = tmp_path / "run" / "export"
    before, after = tensors_of(source), tensors_of(export)
    assert {n: (t.shape, t.dtype) for n, t in after.items()} == {n: (t.shape, t.dtype) for n, t in before.items()}
    untrained = {name for name in before if name.startswith(("model.visual.", "mtp."))}
    assert {name.split(".")[0] for name in untrained} == {"model", "mtp"}
    for name, tensor in before.items():
        same = torch.equal(after[name].view(torch.uint8), tensor.view(torch.uint8))
        assert same == (name in untrained), name
    for name in ("config.json", "generation_config.json", "preprocessor_config.json"):
        assert json.loads((export / name).read_text()) == json.loads((source / name).read_text())

    again = sftune("export", tmp_path / "run", tmp_path / "again", cwd=tmp_path)
    assert again.code == 0, again.err
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (export / "model.safetensors").read_bytes()

    whole, report = AutoModelForImageTextToText.from_pretrained(export, output_loading_info=True)
    # What transformers itself says of the source: it knows no layers for multi-token prediction.
    assert report == AutoModelForImageTextToText.from_pretrained(source, output_loading_info=True)[1]
    assert not report["missing_keys"]
    loaded = dict(whole.named_parameters())
    assert all(torch.equal(loaded[name], after[name].to(loaded[name].dtype)) for name in after if name in loaded)
    text = AutoModelForCausalLM.from_pretrained(export)
    assert torch.equal(text.lm_head.weight, after["lm_head.weight"])
    assert AutoTokenizer.from_pretrained(export).chat_template
