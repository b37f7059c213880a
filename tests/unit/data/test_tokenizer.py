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


def test_a_damaged_tokenizer(tmp_path: Path) -> None:
    shutil.copytree(BUILTIN, tmp_path / "t")
    (tmp_path / "t" / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(ModelError, match="can't be loaded"):
        load_tokenizer(str(tmp_path / "t"), trust_remote_code=False)
