from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sft_cli.checkpoint.layout import (
    checkpoint_path,
    complete_checkpoints,
    link_best,
    remove,
    set_aside_after,
    sweep,
)
from sft_cli.checkpoint.manifest import file_facts, write_manifest
from sft_cli.checkpoint.verify import require_checksums, require_sizes, verify
from sft_cli.errors import CheckpointError


def make_checkpoint(folder: Path, step: int) -> Path:
    path = checkpoint_path(folder, step)
    path.mkdir(parents=True)
    for rank in range(3):
        (path / f"__{rank}_0.distcp").write_bytes(bytes(range(256)) * (rank + 1))
    write_manifest(path, {file.name: file_facts(file) for file in path.iterdir()})
    return path


@pytest.fixture
def checkpoints(tmp_path: Path) -> list[Path]:
    return [make_checkpoint(tmp_path, step) for step in (2, 4)]


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)


def test_a_whole_one_passes(checkpoints: list[Path]) -> None:
    verify(checkpoints[1])


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda file: file.unlink(), "__1_0.distcp is missing"),
        (lambda file: file.write_bytes(b"short"), "__1_0.distcp has 5 bytes, and had 512 when it was written"),
        (flip, "__1_0.distcp is not what was written: its checksum is another"),
    ],
)
def test_a_damaged_file_is_named_with_what_to_take_instead(
    checkpoints: list[Path], damage: Callable[[Path], None], told: str
) -> None:
    damage(checkpoints[1] / "__1_0.distcp")
    with pytest.raises(CheckpointError, match=told) as caught:
        verify(checkpoints[1])
    assert f"--resume-from {checkpoints[0]}" in str(caught.value)
    verify(checkpoints[0])


def test_a_changed_bit_has_no_other_size(checkpoints: list[Path]) -> None:
    flip(checkpoints[0] / "__0_0.distcp")
    require_sizes(checkpoints[0])
    with pytest.raises(CheckpointError, match="There is no older one beside it"):
        require_checksums(checkpoints[0])


@pytest.mark.parametrize("shares", [2, 5])
def test_shares_together_read_every_file(checkpoints: list[Path], shares: int) -> None:
    for file in checkpoints[1].glob("*.distcp"):
        whole = file.read_bytes()
        flip(file)
        caught = 0
        for share in range(shares):
            try:
                require_checksums(checkpoints[1], share=share, shares=shares)
            except CheckpointError:
                caught += 1
        assert caught == 1
        file.write_bytes(whole)


@pytest.mark.parametrize(("name", "told"), [("gone", "no such folder"), ("mine", "no manifest.json")])
def test_what_is_no_checkpoint(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(CheckpointError, match=told):
        verify(tmp_path / name)


def test_a_manifest_that_is_cut(checkpoints: list[Path]) -> None:
    (checkpoints[1] / "manifest.json").write_text('{"__0_0.distcp": {"si')
    with pytest.raises(CheckpointError, match=r"manifest\.json: can't be read"):
        verify(checkpoints[1])


def test_unfinished_and_foreign_folders_are_no_checkpoints(tmp_path: Path) -> None:
    for name in (".step-00000003.unfinished", "step-3", "step-00000004x", "step-00000005", ".step-00000006.removed"):
        (tmp_path / name).mkdir()
    assert [step for step, _ in complete_checkpoints(tmp_path)] == [5]
    assert [path.name for path in sweep(tmp_path)] == [".step-00000003.unfinished", ".step-00000006.removed"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004x", "step-00000005", "step-3"]


def test_half_a_removed_one_has_no_complete_ones_name(checkpoints: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(path: Path, **options: bool) -> None:
        if not options:
            raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        remove(checkpoints[0])
    assert [step for step, _ in complete_checkpoints(checkpoints[0].parent)] == [4]


def test_what_is_set_aside_is_neither_complete_nor_swept(checkpoints: list[Path]) -> None:
    folder = checkpoints[0].parent
    (aside,) = set_aside_after(folder, 2)
    assert [step for step, _ in complete_checkpoints(folder)] == [2]
    assert sweep(folder) == []
    aside.rename(checkpoints[1])
    verify(checkpoints[1])


def test_the_best_is_a_link_that_moves(checkpoints: list[Path]) -> None:
    folder = checkpoints[0].parent
    for step, path in ((2, checkpoints[0]), (4, checkpoints[1])):
        link_best(folder, step)
        assert (folder / "best").resolve() == path.resolve()
        verify(folder / "best")
    link_best(folder, 6)  # of which nothing is there any more
    assert not (folder / "best").is_symlink()
