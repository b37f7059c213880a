from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sft_cli.errors import CheckpointError
from sft_cli.plan.disk import export_bytes, folder_bytes, require_room
from sft_cli.plan.model_facts import find_model
from sft_cli.recipe.schema import ModelSection

GIB = 2**30


class Usage(NamedTuple):
    free: int


@pytest.fixture
def four_gib_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(4 * GIB))


@pytest.mark.usefixtures("four_gib_free")
def test_what_is_wanted_is_named_with_its_size(tmp_path: Path) -> None:
    place = tmp_path / "not" / "there" / "yet"
    require_room(place, {"checkpoints": 3 * GIB, "export": GIB}, fix="")
    with pytest.raises(CheckpointError) as caught:
        require_room(place, {"checkpoints": 3 * GIB, "export": GIB + 1}, fix="Free disk space.")
    sizes = "the disk has 4.0 GiB free, and 4.0 GiB are needed (checkpoints 3.0 GiB, export 1.0 GiB)"
    assert str(caught.value) == f"{place}: {sizes}\n  Free disk space."


@pytest.mark.usefixtures("four_gib_free")
def test_what_will_be_gone_by_then_counts_as_free(tmp_path: Path) -> None:
    require_room(tmp_path, {"export": 5 * GIB}, freed=GIB, fix="")


def test_the_size_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_bytes(b"123")
    (tmp_path / "b").write_bytes(b"12")
    assert folder_bytes(tmp_path) == 5
    assert folder_bytes(tmp_path / "b") == 2
    assert folder_bytes(tmp_path / "c") == 0


@pytest.mark.parametrize(
    ("dtype", "item_bytes"), [({}, 4), ({"dtype": "bfloat16"}, 2), ({"torch_dtype": "float16"}, 2)]
)
def test_drawn_weights_have_the_dtype_of_the_config(dtype: dict[str, Any], item_bytes: int, tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        **dtype,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = find_model(ModelSection(path=str(tmp_path), weights="random"))
    assert export_bytes(facts) == item_bytes * (64 * 16 + 4 * 16 * 16 + 3 * 16 * 24 + 3 * 16)
