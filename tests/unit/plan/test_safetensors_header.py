from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sft_cli.errors import ModelError
from sft_cli.plan.safetensors_header import read_header, stored_tensors


def write(path: Path, entries: dict[str, Any], data: bytes) -> Path:
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_what_a_file_holds_and_where(tmp_path: Path) -> None:
    entries = {"__metadata__": {"format": "pt"}, "b": entry(8, 12, [2], "BF16"), "a": entry(0, 8, [1, 2])}
    path = write(tmp_path / "model.safetensors", entries, b"12345678abcd")
    found = stored_tensors(tmp_path)
    assert list(found) == ["b", "a"]
    assert (found["a"].dtype, found["a"].shape, found["a"].size_bytes) == ("F32", (1, 2), 8)
    assert path.read_bytes()[found["b"].begin : found["b"].end] == b"abcd"


def test_a_dtype_that_nobody_here_knows_is_taken_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "model.safetensors", {"a": entry(0, 3, [6], "F4_OF_TOMORROW")}, b"abc")
    assert read_header(path)["a"].size_bytes == 3


@pytest.mark.parametrize(
    ("entries", "data", "words"),
    [
        ({"a": entry(0, 8, [2])}, b"1234", "it has .* bytes, and its header says"),
        ({"a": entry(0, 8, [2])}, b"123456789", "it has .* bytes, and its header says"),
        ({"a": entry(0, 8, [3])}, b"12345678", "tensor a has 8 bytes"),
        ({"a": entry(0, 4, [1]), "b": entry(8, 12, [1])}, b"1" * 12, "its header puts tensor b where"),
        ({"a": entry(0, 8, [2]), "b": entry(4, 8, [1])}, b"1" * 8, "its header puts tensor b where"),
        ({"a": {"dtype": "F32"}}, b"", "its header can't be read"),
        ({"a": 3}, b"", "its header can't be read"),
    ],
    ids=["cut short", "too long", "another size", "gap", "overlap", "no offsets", "no entry"],
)
def test_a_damaged_file(entries: dict[str, Any], data: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"not a whole safetensors file: {words}"):
        read_header(write(tmp_path / "model.safetensors", entries, data))


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 100, (3).to_bytes(8, "little") + b"[1]"])
def test_no_safetensors_at_all(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="not a whole safetensors file"):
        read_header(tmp_path / "model.safetensors")
