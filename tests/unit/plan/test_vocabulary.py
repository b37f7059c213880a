from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from sft_cli.errors import ModelError
from sft_cli.plan.model_facts import find_model
from sft_cli.plan.plan import ModelFacts
from sft_cli.plan.vocabulary import count_token_ids, fit_vocabulary
from sft_cli.recipe.schema import ModelSection


def tokenizer(folder: Path, ids: int) -> str:
    """Byte-pair style, its last id an added token."""
    content = {
        "model": {"vocab": {f"w{index}": index for index in range(ids - 1)}},
        "added_tokens": [{"id": ids - 1, "content": "<|end|>"}],
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return str(folder)


def tiny(weights: Literal["pretrained", "random"] = "random") -> ModelFacts:
    return find_model(ModelSection(path="builtin:tiny-hybrid")).model_copy(update={"weights": weights})


def test_counts_added_tokens_and_lists(tmp_path: Path) -> None:
    assert count_token_ids(Path(tokenizer(tmp_path, 50))) == 50
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": [["a", -1.0], ["b", -2.0]]}}))
    assert count_token_ids(tmp_path) == 2


@pytest.mark.parametrize("text", ["{", "[]", '{"model": {}}', '{"model": {"vocab": {}}}'])
def test_a_file_that_is_no_tokenizer(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match="not a tokenizer"):
        count_token_ids(tmp_path)


def test_nothing_to_fit(tmp_path: Path) -> None:
    assert fit_vocabulary(tiny(), None) == tiny()
    assert fit_vocabulary(tiny(), str(tmp_path)) == tiny()
    assert fit_vocabulary(tiny(), tokenizer(tmp_path, 1024)) == tiny()


def test_random_weights_grow(tmp_path: Path) -> None:
    grown = fit_vocabulary(tiny(), tokenizer(tmp_path, 2000))
    assert grown.config["vocab_size"] == 2000
    hidden = grown.config["hidden_size"]
    assert grown.parameters == tiny().parameters + 2 * (2000 - 1024) * hidden  # embedding and head
    assert "1,024 grown to the tokenizer's 2,000" in grown.because


def test_pretrained_weights_do_not(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="token ids up to 1,999, the model has 1,024 words"):
        fit_vocabulary(tiny("pretrained"), tokenizer(tmp_path, 2000))
