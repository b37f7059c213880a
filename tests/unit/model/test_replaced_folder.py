from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sft_cli.errors import CheckpointError
from sft_cli.model.replaced_folder import replacing


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder that is there already."""
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "before").write_text("")
    return tmp_path / "export"


def test_the_new_takes_the_place_of_the_old(target: Path) -> None:
    for content in ("first", "second"):
        with replacing(target) as folder:
            (folder / content).write_text("")
            assert names(target) != {content}
        assert names(target) == {content}
    assert names(target.parent) == {"export"}


def test_what_fails_leaves_the_old_and_nothing_else(target: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), replacing(target) as folder:
        write(folder)
    assert names(target) == {"before"}
    assert names(target.parent) == {"export"}


def test_a_full_disk_is_told_with_its_place(target: Path) -> None:
    with pytest.raises(CheckpointError, match=r"GiB free: No space left on device") as caught, replacing(target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target / "model.safetensors"))
    assert caught.value.where == str(target / "model.safetensors")


def test_the_leftovers_of_a_crash_are_removed(target: Path) -> None:
    for left in (".export.unfinished", ".export.old"):
        (target.parent / left).mkdir()
        (target.parent / left / "stale").write_text("")
    with replacing(target) as folder:
        (folder / "new").write_text("")
    assert names(target) == {"new"}
    assert names(target.parent) == {"export"}


def test_the_old_one_of_a_crash_between_two_renames_is_taken_back(target: Path) -> None:
    target.rename(target.with_name(".export.old"))
    with pytest.raises(RuntimeError), replacing(target):
        raise RuntimeError
    assert names(target) == {"before"}


def test_a_file_of_that_name_stays(tmp_path: Path) -> None:
    (tmp_path / "export").write_text("mine")
    with pytest.raises(CheckpointError, match="a file has its name"), replacing(tmp_path / "export"):
        pass
    assert (tmp_path / "export").read_text() == "mine"


def test_a_folder_that_takes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)  # root may write into any folder
    with pytest.raises(CheckpointError, match="Permission denied"), replacing(tmp_path / "export"):
        pass
