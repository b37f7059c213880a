from __future__ import annotations

from pathlib import Path

import pytest

from sft_cli.data.builtin_chat import generate
from sft_cli.data.sources import local_files, open_source
from sft_cli.errors import DataError
from sft_cli.recipe.schema import SourceSection


def test_a_folder_is_read_file_after_file(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"n": 2}\n{"n": 3}\n')
    (tmp_path / "a.json").write_text('[{"n": 1}]')
    rows = list(open_source(SourceSection(path=str(tmp_path)), tmp_path)())
    assert [row.value["n"] for row in rows] == [1, 2, 3]
    assert [row.share_read for row in rows] == [0.5, 0.5 + 9 / 36, 1.0] or rows[-1].share_read == 1.0
    assert rows[1].place == f"{tmp_path}/b.jsonl:1"


@pytest.mark.parametrize("split", [None, "train", "heldout"])
def test_builtin_chat(split: str | None) -> None:
    rows = list(open_source(SourceSection(path="builtin:chat", split=split), Path())())
    assert [row.value for row in rows] == generate("heldout" if split == "heldout" else "train")
    assert rows[0].place == f"builtin:chat[{split or 'train'}]:1"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (SourceSection(path="builtin:chats"), "no such built-in"),
        (SourceSection(path="builtin:chat", split="test"), "no split 'test'"),
        (SourceSection(path="./missing.jsonl"), "no such file"),
        (SourceSection(path="missing.jsonl"), "no such file"),
        (SourceSection(path="missing/deep/folder"), "no such file"),
        (SourceSection(path="*.jsonl.none"), "no file matches"),
    ],
)
def test_what_is_not_there(source: SourceSection, what: str) -> None:
    with pytest.raises(DataError, match=what) as caught:
        list(open_source(source, Path())())
    assert caught.value.where == source.path


@pytest.mark.parametrize("key", ["subset", "split"])
def test_hub_keys_on_a_local_file_are_not_ignored(tmp_path: Path, key: str) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=f"`{key}: test_sft` is set"):
        local_files(SourceSection(path=str(tmp_path / "a.jsonl"), **{key: "test_sft"}))
