"""The real command line against a hub on localhost: a whole run, and how fast it says no."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.busy import allowed
from support.command_line import ROOT
from support.fake_hub import FakeHub, fake_hub
from support.models import CONFIGS
from support.sftune import sftune, training_steps, write_recipe

TOKENIZER = ROOT / "sft_cli" / "data" / "builtin" / "tiny-hybrid"
CARD = "---\nconfigs:\n- config_name: easy\n  data_files:\n  - {split: train_sft, path: easy.jsonl}\n---\n"
ANSWER_SECONDS = 5.0


@pytest.fixture
def the_hub() -> Iterator[FakeHub]:
    with fake_hub() as found:
        yield found


def environment(hub: FakeHub, home: Path, **more: str) -> dict[str, str]:
    nothing = dict.fromkeys(("HF_TOKEN", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "")
    return {**nothing, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "CUDA_VISIBLE_DEVICES": "", **more}


def recipe(folder: Path, model: dict[str, Any], data: Any) -> Path:
    return write_recipe(
        folder / "r.yaml",
        model={"dtype": "float32", **model},
        data={"train": data, "cache_dir": str(folder / "cache")},
        batching={"tokens": 256},
        train={"max_steps": 2, "tokens_per_step": 256},
        output_dir=str(folder / "run"),
    )


def chats(hub: FakeHub, **traits: Any) -> None:
    rows = [{"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]}] * 40
    text = "".join(json.dumps(row) + "\n" for row in rows)
    hub.dataset("owner/chats", {"README.md": CARD, "easy.jsonl": text}, **traits)


def model_files(folder: Path) -> dict[str, str | bytes]:
    """A tiny Llama with the built-in tokenizer, as a hub holds it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    keys = {key: value for key, value in CONFIGS["llama"].items() if key != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **{**keys, "vocab_size": 1024}))
    model.save_pretrained(folder)
    return {file.name: file.read_bytes() for file in [*folder.iterdir(), *TOKENIZER.iterdir()]}


def holders(folder: Path, secret: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


@pytest.mark.long
def test_a_private_model_and_data_set_by_revision_and_then_without_a_network(the_hub: FakeHub, tmp_path: Path) -> None:
    files = model_files(tmp_path / "saved")
    the_hub.model("owner/model", files, private=True).commit({**files, "pytorch_model.bin": "x"}, "v1")
    the_hub.repos["model", "owner/model"].commit({"README.md": "main has nothing"})
    chats(the_hub, private=True)
    source = {"path": "owner/chats", "subset": "easy", "split": "train_sft"}
    path = recipe(tmp_path, {"path": "owner/model", "revision": "v1"}, source)
    ended = sftune(
        "train", path, "--debug", cwd=tmp_path, **environment(the_hub, tmp_path / "home", HF_TOKEN=the_hub.token)
    )
    assert ended.code == 0, ended.err
    assert len(training_steps(tmp_path / "run")) == 2
    assert "tokenising owner/chats 40 rows\ndownloading the weights of owner/model\n" in ended.err
    assert "pytorch_model.bin" not in the_hub.downloaded()
    commit = the_hub.repos["dataset", "owner/chats"].refs["main"]
    assert f'"revision":"{commit}"' in (tmp_path / "run/plan.json").read_text().replace(" ", "")
    asked = [path for _, path, _ in the_hub.requests]
    assert asked.count("/api/datasets/owner/chats") == 1, "workers ask nobody"
    assert any(header == f"Bearer {the_hub.token}" for *_, header in the_hub.requests)
    assert the_hub.token not in ended.out + ended.err
    assert holders(tmp_path, the_hub.token) == []

    asked = len(the_hub.requests)
    offline = environment(the_hub, tmp_path / "home", HF_HUB_OFFLINE="1")
    ended = sftune("plan", path, "--json", cwd=tmp_path, **offline)
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["steps"] == 2
    assert len(the_hub.requests) == asked


@pytest.mark.parametrize(
    ("model", "data", "code", "words"),
    [
        ("owner/silent", "builtin:chat", 2, "can't be reached: "),
        ("builtin:tiny-hybrid", "owner/closed", 3, "owner/closed is gated"),
    ],
    ids=["silent model", "gated data"],
)
def test_a_refusal_comes_within_seconds(
    the_hub: FakeHub, tmp_path: Path, model: str, data: str, code: int, words: str
) -> None:
    the_hub.model("owner/silent", hangs=True)
    the_hub.dataset("owner/closed", {"x.jsonl": "{}"}, gated=True)
    path = recipe(tmp_path, {"path": model}, data)
    began = time.monotonic()
    ended = sftune("train", path, cwd=tmp_path, **environment(the_hub, tmp_path / "home"))
    seconds = time.monotonic() - began
    assert ended.code == code, ended.err
    assert words in ended.err
    assert len(ended.err.splitlines()) == 2
    assert seconds < allowed(ANSWER_SECONDS)
    assert not (tmp_path / "run").exists()
