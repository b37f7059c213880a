"""The checks on models that have no family file, with models that transformers really has."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from sft_cli.errors import ModelError
from sft_cli.plan import generic_probe as plan
from sft_cli.plan.model_facts import find_model
from sft_cli.plan.parameters import count_parameters
from sft_cli.recipe.schema import ModelSection
from sft_cli.worker import generic_probe as worker
from sft_cli.worker.generic_probe import probe

SMALL = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
RIGHT = {
    "phi3": {},
    "phi3 with a window": {"sliding_window": 2047},
    "olmo2": {},
    "olmo3": {"sliding_window": 100},
    "smollm3": {},
    "granite": {"embedding_multiplier": 12.0, "residual_multiplier": 0.2, "attention_multiplier": 0.1},
    "starcoder2": {},
    "glm4": {},
    "gemma": {},
}
REFUSED = {
    "granite": ({"logits_scaling": 8.0}, r"other logits than transformers' own.*logits_scaling: 8\.0"),
    "cohere": ({}, r"other logits than transformers' own.*logit_scale"),
    "gemma2": ({}, "asked for softcap"),
    "gpt_oss": ({"num_local_experts": 4, "num_experts_per_tok": 2}, "asked for s_aux"),
    # Attention in chunks of 8,192 tokens: shown by the small copy only because its chunks are small too.
    "llama4_text": ({"attention_chunk_size": 8192, "num_local_experts": 4}, "other logits than transformers' own"),
    "mixtral": ({"num_local_experts": 4}, "hold other tensors than its modules do"),
    "qwen3_moe": ({"num_experts": 4, "num_experts_per_tok": 2}, "hold other tensors than its modules do"),
    "gpt2": ({}, r"no model\.embed_tokens"),
    "phi": ({}, r"no model\.norm"),
    "mamba": ({}, r"its parts are backbone"),
    "phi3": (
        {
            "max_position_embeddings": 8192,
            "original_max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
            },
        },
        "rope_type longrope",
    ),
    "made_up": ({}, "doesn't know it"),
    "t5": ({}, r"no \.\.\.ForCausalLM"),
}


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    return {**SMALL, "model_type": name.split()[0], **changes}


def build(config: dict[str, Any]) -> Any:
    keys = {key: value for key, value in config.items() if key != "model_type"}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **keys), dtype=torch.float32)


@pytest.mark.parametrize("name", RIGHT)
def test_a_plain_decoder_passes_and_is_counted(name: str) -> None:
    config = config_of(name, **RIGHT[name])
    probed = probe(config, None, None)
    model = build(config)
    counted = count_parameters(probed.architecture())
    assert counted.total == sum(parameter.numel() for parameter in model.parameters())
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    assert counted.matmul == sum(module.weight.numel() for module in linear)
    kinds = model.config.to_dict().get("layer_types") or []
    sliding = [kind == "sliding_attention" for kind in kinds] or ["sliding_window" in RIGHT[name]] * 4
    assert [layer.window is not None for layer in probed.layers] == sliding
    assert {layer.window for layer in probed.layers} <= {None, RIGHT[name].get("sliding_window")}


@pytest.mark.parametrize("name", REFUSED)
def test_what_training_would_get_wrong_is_refused(name: str) -> None:
    changes, reason = REFUSED[name]
    with pytest.raises(ModelError, match=reason) as caught:
        probe(config_of(name, **changes), None, None)
    assert caught.value.fix


def write_source(folder: Path, **changes: torch.Tensor | None) -> Path:
    """olmo2 as `save_pretrained` writes it, with tensors changed, or left out where None."""
    folder.mkdir()
    tensors = dict(build(config_of("olmo2")).named_parameters()) | changes
    save_file({name: t.detach() for name, t in tensors.items() if t is not None}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_of("olmo2")), encoding="utf-8")
    return folder


def test_weights_must_be_the_models(tmp_path: Path) -> None:
    whole = write_source(tmp_path / "whole")
    assert probe(config_of("olmo2"), None, whole).tied_embeddings is False
    for name, tensor, reason in (
        ("model.norm.weight", None, "have no tensor"),
        ("model.norm.weight", torch.ones(3), r"is \(3,\), the model's \(64,\)"),
        ("model.layers.0.extra.weight", torch.ones(3), "1 tensors that the model doesn't have"),
    ):
        folder = write_source(tmp_path / reason[:8], **{name: tensor})
        with pytest.raises(ModelError, match=reason):
            probe(config_of("olmo2"), None, folder)


def test_a_refusal_of_the_child_process_has_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_here(arguments: list[str], *, question: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """A child takes seconds to import what this process has; the last test of this file has one."""
        monkeypatch.setattr(sys, "argv", arguments[1:])
        monkeypatch.setattr(sys, "stdin", io.StringIO(question))
        assert arguments[:2] == ["-m", worker.__name__]
        worker.main()
        return subprocess.CompletedProcess(arguments, 0, "", "")

    monkeypatch.setattr(plan, "ask", ask_here)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(config_of("granite", logits_scaling=8.0)), encoding="utf-8")
    with pytest.raises(ModelError, match="'granite' has no family of its own, and") as caught:
        find_model(ModelSection(path=str(config), weights="random"))
    assert caught.value.where == "model.path"


def test_what_cannot_be_built_says_what_transformers_said() -> None:
    with pytest.raises(ModelError, match=r"transformers can't build a model from its config: .*no such thing"):
        probe(config_of("olmo2", hidden_act="no such thing"), None, None)


def test_what_cannot_be_run_is_the_child_processs_last_words(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(config_of("olmo2", num_hidden_layers=0)), encoding="utf-8")
    with pytest.raises(ModelError, match="a small copy of it can't be built and run: StopIteration"):
        find_model(ModelSection(path=str(config), weights="random"))
