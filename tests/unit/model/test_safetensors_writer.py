from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import sft_cli.model.safetensors_writer as writer_module
from sft_cli.model.safetensors_writer import Entry, SafetensorsWriter
from sft_cli.plan.local_model import SAFETENSORS_INDEX
from sft_cli.plan.safetensors_header import stored_tensors

TENSORS: dict[str, tuple[str, Tensor]] = {
    "odd": ("BF16", torch.randn(3).bfloat16()),
    "bytes": ("U8", torch.arange(5, dtype=torch.uint8)),
    "empty": ("F32", torch.empty(0, 4)),
    "ä": ("F32", torch.randn(2, 3)),
    "number": ("I64", torch.tensor(7)),
    "eighth": ("F8_E4M3", torch.randn(7).to(torch.float8_e4m3fn)),
    "flag": ("BOOL", torch.tensor([True, False, True])),
}


def entries() -> list[Entry]:
    return [Entry(name, dtype, tuple(t.shape), t.nbytes) for name, (dtype, t) in TENSORS.items()]


def content(tensor: Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def write_all(folder: Path) -> None:
    writer = SafetensorsWriter(folder, entries())
    for name, (_, tensor) in TENSORS.items():
        writer.write(name, [content(tensor)[:3], content(tensor)[3:]])
    writer.close()


@pytest.mark.parametrize("shard_bytes", [10**9, 20, 1])
def test_the_library_reads_what_is_written(shard_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the dtypes, aligned as they need."""
    monkeypatch.setattr(writer_module, "SHARD_BYTES", shard_bytes)
    write_all(tmp_path)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert (tmp_path / SAFETENSORS_INDEX).exists() == (len(files) > 1)
    if len(files) == 1:
        assert files[0].name == "model.safetensors"
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert set(found) == set(TENSORS)
    for name, (_, tensor) in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert content(found[name]) == content(tensor)
    assert set(stored_tensors(tmp_path)) == set(TENSORS)


def test_a_tensor_of_another_size_than_announced_is_a_bug(tmp_path: Path) -> None:
    writer = SafetensorsWriter(tmp_path, entries())
    with pytest.raises(AssertionError, match="odd has 4 bytes, 6 were announced"):
        writer.write("odd", [b"1234"])
