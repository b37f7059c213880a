"""Every family from its source to its export through the real worker: two steps, saved, exported, loaded again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models import CONFIGS, vision_language_config
from support.ports import lone_rank_environment
from support.session import Session
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

import sft_cli.worker.run as worker
from sft_cli.cli.planning import with_data
from sft_cli.model.language_model import LanguageModel
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.model_facts import find_model, find_tokenizer
from sft_cli.plan.resolve import resolve
from sft_cli.recipe.schema import Recipe

WORDS = 1024
"""As many as the built-in tokenizer has ids."""
TINY_VISION = {
    "qwen3_5": {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 64},
    "qwen3_5_moe": {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 64},
    "gemma3": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
    },
}


USUALLY_TIED = ("gemma3", "qwen3")


def each(families: Iterable[str]) -> list[Any]:
    """Every family with its head tied to the embedding and not; the rarer of the two is a long test."""
    return [
        pytest.param(
            family,
            tied,
            id=f"{family}-{'tied' if tied else 'untied'}",
            marks=[] if tied == (family in USUALLY_TIED) or family == "qwen3_5" else pytest.mark.long,
        )
        for family in families
        for tied in (False, True)
    ]


@dataclass(frozen=True)
class Trained:
    model: LanguageModel
    export: Path
    parameters: int


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "chat.jsonl"
    chats = [(f"{number} and {number}?", f"It is {2 * number}.") for number in range(24)]
    rows = [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
        for question, answer in chats
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in lone_rank_environment().items():
        monkeypatch.setenv(name, value)


def train(
    path: Path, weights: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **model_keys: Any
) -> Trained:
    """Two steps with the recipe's usual resolving and the worker's `run`."""
    recipe = Recipe(
        model={
            "path": str(path),
            "weights": weights,
            "dtype": "float32",
            "tokenizer": "builtin:tiny-hybrid",
            **model_keys,
        },
        data={"train": str(data), "cache_dir": str(tmp_path / "cache")},
        batching={"tokens": 256},
        optimizer={"learning_rate": 1e-3},
        train={"max_steps": 2, "tokens_per_step": 512},
        output_dir=str(tmp_path / "run"),
    )
    facts = find_model(recipe.model)
    plan = resolve(recipe, Hardware(0, None, None), facts, find_tokenizer(recipe.model))
    plan, _ = with_data(plan, progress=False)
    (tmp_path / "run").mkdir()
    plan.write(tmp_path / "run" / "plan.json")
    seen: list[LanguageModel] = []

    def export(target: Path, model: LanguageModel, *arguments: Any, **options: Any) -> None:
        seen.append(model)
        original(target, model, *arguments, **options)

    original = worker.export_model
    monkeypatch.setattr(worker, "export_model", export)
    assert worker.run(tmp_path / "run" / "plan.json", Session(), is_dry_run=False) == 0  # type: ignore[arg-type]
    return Trained(seen[0], tmp_path / "run" / "export", facts.parameters)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def reload(folder: Path, **options: Any) -> PreTrainedModel:
    """With every key matched: none missing, none left over, none of another shape."""
    options = {"output_loading_info": True, "dtype": torch.float32, **options}
    model, report = AutoModelForCausalLM.from_pretrained(folder, **options)
    assert {kind: found for kind, found in report.items() if found} == {}
    return model.eval()


def assert_same_logits(trained: Trained, loaded: PreTrainedModel) -> None:
    ids = torch.arange(1, 60)[None]
    with torch.no_grad():
        expected = trained.model.eval()({"input_ids": ids, "position_ids": torch.arange(59)[None]})
        torch.testing.assert_close(loaded(ids, use_cache=False).logits, expected, atol=1e-4, rtol=1e-4)


def config_of(family: str, **changes: Any) -> dict[str, Any]:
    return {**CONFIGS[family], "vocab_size": WORDS, "initializer_range": 0.1, "dtype": "float32", **changes}


def build(config: dict[str, Any], auto: Any = AutoModelForCausalLM) -> PreTrainedModel:
    torch.manual_seed(0)
    keys = {key: value for key, value in config.items() if key != "model_type"}
    return auto.from_config(AutoConfig.for_model(config["model_type"], **keys), dtype=torch.float32)


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(("family", "tied"), each(CONFIGS))
def test_from_a_source_to_a_folder_like_it(
    family: str, tied: bool, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is what transformers itself writes: of Qwen3-Next, one tensor for each expert."""
    folder = tmp_path / "source"
    source = build(config_of(family, tie_word_embeddings=tied))
    source.save_pretrained(folder)
    before = tensors_of(folder)
    if family == "qwen3_next":
        assert "model.layers.0.mlp.experts.0.up_proj.weight" in before
    trained = train(folder, "pretrained", data, tmp_path, monkeypatch)
    assert trained.parameters == sum(parameter.numel() for parameter in source.parameters())
    after = tensors_of(trained.export)
    assert {n: (t.shape, t.dtype) for n, t in after.items()} == {n: (t.shape, t.dtype) for n, t in before.items()}
    assert all((after[name] != before[name]).any() for name in before if name.endswith("proj.weight"))
    assert json.loads((trained.export / "config.json").read_text()) == json.loads((folder / "config.json").read_text())
    assert_same_logits(trained, reload(trained.export))


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_5", "qwen3_5_moe", "qwen3_next"])
def test_random_weights_leave_what_transformers_would_write(
    family: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_of(family)), encoding="utf-8")
    trained = train(path, "random", data, tmp_path, monkeypatch)
    loaded = reload(trained.export)
    assert_same_logits(trained, loaded)
    if family != "qwen3_5_moe":  # whole experts: the oldest transformers knows no others of this family
        loaded.save_pretrained(tmp_path / "again")
        assert set(tensors_of(trained.export)) == set(tensors_of(tmp_path / "again"))


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(("family", "tied"), each(["qwen3_5", "qwen3_5_moe", "gemma3"]))
def test_of_a_vision_language_model_the_text_is_trained(
    family: str, tied: bool, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = vision_language_config(family)
    config["vision_config"] = TINY_VISION[family]
    config["tie_word_embeddings"] = tied
    config["text_config"] |= config_of(family, tie_word_embeddings=tied)
    folder = tmp_path / "source"
    build(config, AutoModelForImageTextToText).save_pretrained(folder)
    before = tensors_of(folder)
    (folder / "preprocessor_config.json").write_text("{}", encoding="utf-8")
    if family != "gemma3":
        before["mtp.fc.weight"] = torch.randn(3, 2)
        save_file(before, folder / "model.safetensors", metadata={"format": "pt"})
    trained = train(folder, "pretrained", data, tmp_path, monkeypatch)
    after = tensors_of(trained.export)
    assert {n: (t.shape, t.dtype) for n, t in after.items()} == {n: (t.shape, t.dtype) for n, t in before.items()}
    for name, tensor in before.items():
        is_text = "language_model" in name or name.startswith("lm_head")
        if not is_text or name.endswith("proj.weight"):
            assert torch.equal(after[name], tensor) == (not is_text), name
    assert json.loads((trained.export / "config.json").read_text()) == json.loads((folder / "config.json").read_text())
    assert (trained.export / "preprocessor_config.json").is_file()
    assert_same_logits(trained, reload(trained.export))
    AutoModelForImageTextToText.from_pretrained(trained.export)


OLMO2 = {key: value for key, value in CONFIGS["llama"].items() if key != "rope_parameters"} | {"model_type": "olmo2"}


@pytest.mark.usefixtures("environment")
def test_a_model_without_a_family_file(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "source"
    source = build({**OLMO2, "vocab_size": WORDS})
    source.save_pretrained(folder)
    trained = train(folder, "pretrained", data, tmp_path, monkeypatch)
    assert trained.parameters == sum(parameter.numel() for parameter in source.parameters())
    assert set(tensors_of(trained.export)) == set(tensors_of(folder))
    assert_same_logits(trained, reload(trained.export))


@pytest.mark.usefixtures("environment")
def test_a_model_with_code_of_its_own(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With trust, through the generic path; the code goes along with the export. `test_remote_code.py` has no trust."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "modeling_own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n\n\n"
        'class OwnConfig(LlamaConfig):\n    model_type = "sftune_own"\n\n\n'
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n",
        encoding="utf-8",
    )
    auto_map = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    config = {**config_of("llama"), "model_type": "sftune_own", "auto_map": auto_map}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = {name: p.detach() for name, p in build(config_of("llama")).named_parameters()}
    save_file(weights, folder / "model.safetensors")
    trained = train(folder, "pretrained", data, tmp_path, monkeypatch, trust_remote_code=True)
    assert_same_logits(trained, reload(trained.export, trust_remote_code=True))
