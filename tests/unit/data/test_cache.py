from __future__ import annotations

import fcntl
import multiprocessing
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sft_cli.data.cache import RowWriter, cache_key, load_or_build
from sft_cli.data.chat import EncodedChat
from sft_cli.data.report import SourceReport
from sft_cli.errors import CheckpointError, DataError

KEY = "k" * 64
ROWS = [[1, 2, 3], [70_000, 5]]


def build(writer: RowWriter) -> tuple[SourceReport, ...]:
    for index, row in enumerate(ROWS):
        token_ids = np.array(row, dtype=np.uint32)
        writer.append([EncodedChat(token_ids, (token_ids % 2).astype(np.uint8))], index)
    return tuple(
        SourceReport(f"{index}.jsonl", "messages", 3, 1, {"x": 2}, len(row), 1) for index, row in enumerate(ROWS)
    )


def never(writer: RowWriter) -> tuple[SourceReport, ...]:
    raise AssertionError("the entry is there")


def test_rows_come_back_memory_mapped_with_their_reports(tmp_path: Path) -> None:
    _, written = load_or_build(tmp_path / "new" / "cache", KEY, build)
    rows, reports = load_or_build(tmp_path / "new" / "cache", KEY, never)
    assert reports == written == build(_Ignore())
    assert [rows.row(index)[0].tolist() for index in range(len(rows))] == ROWS
    assert rows.row(1)[1].tolist() == [0, 1]
    assert rows.source_of_row.tolist() == [0, 1]
    assert rows.lengths.tolist() == [3, 2]
    assert isinstance(rows.token_ids, np.memmap)
    assert (rows.token_ids.dtype, rows.supervised.dtype, rows.offsets.dtype) == (np.uint32, np.uint8, np.int64)


class _Ignore(RowWriter):
    def __init__(self) -> None:
        pass

    def append(self, chats: Sequence[EncodedChat], source: int) -> None:
        pass


@pytest.mark.parametrize("name", ["token_ids.npy", "supervised.npy", "lengths.npy", "source_of_row.npy", "report.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "other"])
def test_a_damaged_entry_is_built_anew(tmp_path: Path, name: str, damage: str) -> None:
    load_or_build(tmp_path, KEY, build)
    file = tmp_path / KEY / name
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "other":
        other = name != "report.json"
        np.save(file, np.arange(9)) if other else file.write_text('[{"path": "a"}]')
    else:
        file.write_bytes(b"" if damage == "empty" else content[:-1] if name != "report.json" else content[:-4])
    rows, _ = load_or_build(tmp_path, KEY, build)
    assert [rows.row(index)[0].tolist() for index in range(2)] == ROWS
    assert file.read_bytes() == content


def test_a_leftover_of_a_killed_process_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / f"{KEY}.unfinished").mkdir(parents=True)
    (tmp_path / f"{KEY}.unfinished" / "token_ids.npy").write_bytes(b"half")
    assert len(load_or_build(tmp_path, KEY, build)[0]) == 2


def test_what_a_killed_process_left_of_another_entry_is_swept_and_what_is_being_built_is_not(tmp_path: Path) -> None:
    dead, alive = "d" * 64, "a" * 64
    for key in (dead, alive):
        (tmp_path / f"{key}.unfinished").mkdir()
        (tmp_path / f"{key}.lock").touch()
    with (tmp_path / f"{alive}.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        load_or_build(tmp_path, KEY, build)
    assert {path.name for path in tmp_path.iterdir()} == {KEY, f"{alive}.unfinished", f"{alive}.lock"}


def test_nothing_is_left_behind_when_building_fails(tmp_path: Path) -> None:
    def fail(writer: RowWriter) -> tuple[SourceReport, ...]:
        build(writer)
        raise DataError("a bad row", where="a.jsonl:3")

    with pytest.raises(DataError):
        load_or_build(tmp_path, KEY, fail)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_not_be_written_is_an_error_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="can't be written") as caught:
        load_or_build(tmp_path / "file" / "cache", KEY, build)
    assert caught.value.exit_code == 5
    assert "data.cache_dir" in caught.value.where
    assert "data.cache_dir" in caught.value.fix


def test_the_disk_gives_out_while_rows_are_written(tmp_path: Path) -> None:
    def lose_folder(writer: RowWriter) -> tuple[SourceReport, ...]:
        shutil.rmtree(tmp_path / f"{KEY}.unfinished")
        return build(writer)

    with pytest.raises(CheckpointError):
        load_or_build(tmp_path, KEY, lose_folder)


def _count_and_build(cache: Path, log: Path, barrier: object) -> None:
    def slow(writer: RowWriter) -> tuple[SourceReport, ...]:
        with log.open("a") as stream:
            stream.write("built\n")
        time.sleep(0.3)
        return build(writer)

    barrier.wait()
    rows, _ = load_or_build(cache, KEY, slow)
    with log.open("a") as stream:
        stream.write(f"{len(rows)} rows\n")


def test_of_several_processes_one_builds_and_the_others_wait(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    arguments = (tmp_path / "cache", tmp_path / "log", barrier)
    processes = [context.Process(target=_count_and_build, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=30)
    assert [process.exitcode for process in processes] == [0] * 4
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["2 rows"] * 4 + ["built"]


def test_the_key_follows_from_the_facts_alone() -> None:
    assert cache_key({"a": 1, "b": [None]}) == cache_key({"b": [None], "a": 1})
    assert cache_key({"a": 1}) != cache_key({"a": 2})
    assert len(cache_key({})) == 64
