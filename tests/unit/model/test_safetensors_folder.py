from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sft_cli.errors import ModelError
from sft_cli.model.safetensors_folder import SafetensorsFolder
from sft_cli.plan.local_model import SAFETENSORS_INDEX


def test_reads_rows_over_several_files(tmp_path: Path) -> None:
    first, second = torch.arange(12.0).view(6, 2), torch.ones(3, dtype=torch.bfloat16)
    save_file({"a": first}, tmp_path / "one.safetensors")
    save_file({"b": second}, tmp_path / "two.safetensors")
    (tmp_path / SAFETENSORS_INDEX).write_text(
        json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})
    )
    folder = SafetensorsFolder(tmp_path)
    assert folder.names() == ["a", "b"]
    assert folder.shape("a") == (6, 2)
    assert folder.dtype("b") == "BF16"
    assert torch.equal(folder.rows("a", slice(2, 4)), first[2:4])
    assert torch.equal(folder.rows("a", slice(None)), first)


def test_one_file_needs_no_index(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    assert "a" in SafetensorsFolder(tmp_path)


def test_an_index_that_names_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / SAFETENSORS_INDEX).write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(ModelError, match=r"gone\.safetensors, which is not there"):
        SafetensorsFolder(tmp_path)


def test_an_index_that_names_a_tensor_which_its_file_lacks(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    (tmp_path / SAFETENSORS_INDEX).write_text(
        json.dumps({"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}})
    )
    with pytest.raises(ModelError, match=r"names a tensor b in one\.safetensors"):
        SafetensorsFolder(tmp_path)


def test_no_weights(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="no safetensors weights"):
        SafetensorsFolder(tmp_path)


def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not a header")
    with pytest.raises(ModelError, match="not a whole safetensors file"):
        SafetensorsFolder(tmp_path)
