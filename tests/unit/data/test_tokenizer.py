from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sft_cli.data.tokenizer import load_tokenizer
from sft_cli.errors import ModelError

BUILTIN = Path(__file__).parents[3] / "sft_cli" / "data" / "builtin" / "tiny-hybrid"


def test_a_local_folder() -> None:
    tokenizer = load_tokenizer(str(BUILTIN), trust_remote_code=False)
    assert tokenizer.is_fast
    assert len(tokenizer) == 1024


def test_a_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    for folder in (None, str(tmp_path), str(tmp_path / "missing")):
        with pytest.raises(ModelError) as caught:
            load_tokenizer(folder, trust_remote_code=False)
        assert caught.value.where.startswith("model.tokenizer")
        assert caught.value.fix


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tokenizer.json", '{"version": "1.0"}'),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", "null"),
        ("tokenizer.json", ""),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", '{"tokenizer_class": 3}'),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": 3}}'),
        ("config.json", "[]"),
    ],
)
def test_a_damaged_tokenizer(tmp_path: Path, file: str, text: str) -> None:
    shutil.copytree(BUILTIN, tmp_path / "t")
    (tmp_path / "t" / file).write_text(text)
    with pytest.raises(ModelError, match="can't be loaded"):
        load_tokenizer(str(tmp_path / "t"), trust_remote_code=False)


@pytest.mark.parametrize("code", ["import a_package_that_nobody_has", "raise RuntimeError", "def broken("])
def test_code_of_a_tokenizer_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "t"
    shutil.copytree(BUILTIN, folder)
    (folder / "tokenization_own.py").write_text(code)
    auto_map = {"AutoTokenizer": [None, "tokenization_own.OwnTokenizer"]}
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": auto_map}))
    with pytest.raises(ModelError, match=r"can't be loaded: .+"):
        load_tokenizer(str(folder), trust_remote_code=True)
