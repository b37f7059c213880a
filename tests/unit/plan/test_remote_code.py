"""Code that comes with a model runs where the recipe says so, and never else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_hub import FakeHub, fake_hub, point_at

from sft_cli.data.tokenizer import load_tokenizer
from sft_cli.errors import ModelError
from sft_cli.plan import remote_code
from sft_cli.plan.model_facts import find_model, find_tokenizer
from sft_cli.plan.remote_code import code_files, code_repos, require_trust
from sft_cli.plan.shapes import read_shape
from sft_cli.recipe.schema import ModelSection

BUILTIN = Path(__file__).parents[3] / "sft_cli" / "data" / "builtin" / "tiny-hybrid"
HARMFUL = "from pathlib import Path\nPath(__file__).with_name('HARM').touch()\n"
TOKENIZER_CODE = (
    "from pathlib import Path\nfrom transformers import PreTrainedTokenizerFast\n"
    "class OwnTokenizer(PreTrainedTokenizerFast):\n    ran_its_own_code = True\n"
)


@pytest.fixture
def asked_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """transformers is asked in this process, which has imported it; a child takes seconds to."""

    def ask(arguments: list[str], *, limit_seconds: float) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", arguments[1:])
        exec(arguments[1], {})
        return subprocess.CompletedProcess(arguments, 0, capsys.readouterr().out, "")

    monkeypatch.setattr(remote_code, "ask", ask)


def own_tokenizer(folder: Path, auto_map: Any, **changes: Any) -> Path:
    shutil.copytree(BUILTIN, folder)
    path = folder / "tokenizer_config.json"
    config = {**json.loads(path.read_text()), "auto_map": auto_map, "tokenizer_class": "OwnTokenizer", **changes}
    path.write_text(json.dumps(config))
    (folder / "tokenization_own.py").write_text(TOKENIZER_CODE)
    return folder


OWN = {"AutoTokenizer": [None, "tokenization_own.OwnTokenizer"]}


@pytest.fixture
def tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    return own_tokenizer(tmp_path / "own", OWN)


def section(folder: Path, *, trusted: bool) -> ModelSection:
    return ModelSection(path="builtin:tiny-hybrid", tokenizer=str(folder), trust_remote_code=trusted)


def test_a_tokenizer_with_code_of_its_own_is_refused_without_trust(tokenizer: Path) -> None:
    with pytest.raises(ModelError, match="this tokenizer runs only with Python code that comes with it") as caught:
        find_tokenizer(section(tokenizer, trusted=False))
    assert caught.value.exit_code == 2
    assert caught.value.where == "model.tokenizer"
    assert "tokenization_own.OwnTokenizer" in caught.value.what
    assert "model.trust_remote_code is false" in caught.value.what
    assert "`trust_remote_code: true`" in str(caught.value.fix)


def test_with_trust_it_loads(tokenizer: Path) -> None:
    folder = find_tokenizer(section(tokenizer, trusted=True))
    loaded = load_tokenizer(folder, trust_remote_code=True)
    assert loaded.ran_its_own_code
    assert loaded.is_fast


@pytest.mark.usefixtures("asked_here")
def test_a_config_whose_code_transformers_does_not_have(tmp_path: Path) -> None:
    config = {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "configuration_own.py").write_text(HARMFUL)
    with pytest.raises(ModelError, match="this model runs only with Python code that comes with it") as caught:
        find_model(ModelSection(path=str(tmp_path), weights="random"))
    assert caught.value.where == "model.path"
    assert not list(tmp_path.rglob("HARM"))
    require_trust(tmp_path, "config.json", trusted=True, where="x")


@pytest.mark.usefixtures("asked_here")
def test_a_config_that_transformers_can_do_without_its_code(tmp_path: Path) -> None:
    auto_map = {"auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}
    (tmp_path / "modeling_own.py").write_text(HARMFUL)
    (tmp_path / "config.json").write_text(json.dumps({**read_shape("llama-3.1-8b"), **auto_map}))
    assert find_model(ModelSection(path=str(tmp_path), weights="random")).family == "llama"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "phi3", **auto_map}))
    require_trust(tmp_path, "config.json", trusted=False, where="x")
    assert not list(tmp_path.rglob("HARM"))


def test_what_is_named(tmp_path: Path) -> None:
    auto_map = {
        "AutoConfig": "configuration_a.A",
        "AutoModel": "owner/code--modeling_b.B",
        "AutoTokenizer": ["c.C", None],
    }
    (tmp_path / "config.json").write_text(json.dumps({"auto_map": auto_map}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": ["d.D", None]}))
    assert code_files(tmp_path) == ["c.py", "configuration_a.py", "d.py"]
    assert code_repos(tmp_path) == ["owner/code"]
    for text in ("[]", "{", '{"auto_map": 3}'):
        (tmp_path / "config.json").write_text(text)
        assert code_repos(tmp_path) == []


@pytest.fixture
def the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with fake_hub() as found:
        point_at(monkeypatch, found.url, tmp_path / "home")
        yield found


def test_code_comes_from_the_hub_with_trust_alone(the_hub: FakeHub) -> None:
    config = {**read_shape("llama-3.1-8b"), "auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}
    files = {
        "config.json": json.dumps(config),
        "modeling_own.py": HARMFUL,
        "helper.py": "x = 1",
        "tokenizer.json": "{ }",
    }
    the_hub.model("owner/model", files)
    plain = ModelSection(path="owner/model", weights="random")
    assert find_model(plain, download=True).family == "llama"
    assert the_hub.downloaded() == ["config.json", "tokenizer.json"]
    trusted = plain.model_copy(update={"trust_remote_code": True})
    find_tokenizer(trusted, download=True)
    assert the_hub.downloaded() == sorted(files)


def test_code_in_another_repository_comes_too(the_hub: FakeHub) -> None:
    config = {"auto_map": {"AutoTokenizer": [None, "owner/code--tokenization_own.OwnTokenizer"]}}
    the_hub.model("owner/code", {"tokenization_own.py": TOKENIZER_CODE, "model.safetensors": "large"})
    the_hub.model("owner/model", {"tokenizer_config.json": json.dumps(config), "tokenizer.json": "{}"})
    trusted = ModelSection(path="builtin:tiny-hybrid", tokenizer="owner/model", trust_remote_code=True)
    find_tokenizer(trusted, download=True)
    assert the_hub.downloaded() == ["tokenization_own.py", "tokenizer.json", "tokenizer_config.json"]


def test_an_import_that_hangs_is_an_error_and_not_a_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}')
    monkeypatch.setattr(remote_code, "_ASK_TRANSFORMERS", "import time; time.sleep(60)")
    monkeypatch.setattr(remote_code, "TIMEOUT_SECONDS", 1)
    with pytest.raises(ModelError, match="did not say within 1 s"):
        remote_code.require_trust(tmp_path, "config.json", trusted=False, where="model.path")
