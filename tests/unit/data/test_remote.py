"""Files behind an address: listed, pinned, copied once, read like local ones; told in plain words when they can't."""

from __future__ import annotations

import fcntl
import gzip
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from sft_cli.data.blocks import BLOCK_ROWS
from sft_cli.data.cache import locked
from sft_cli.data.pinning import pin_sources
from sft_cli.data.prepare import prepare
from sft_cli.data.remote import copies, filesystem
from sft_cli.data.remote.listing import Listing, RemoteFile, ask_for_listing, pinned_listing
from sft_cli.data.sources import open_source
from sft_cli.data.stream.rows import Stream
from sft_cli.errors import CheckpointError, DataError
from sft_cli.recipe.schema import SourceSection


class Elsewhere(MemoryFileSystem):
    """A protocol of these tests': files in memory, whose openings are counted."""

    protocol = "elsewhere"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    opened: list[str] = []  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("elsewhere://", "memory://"))

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode == "rb":
            self.opened.append(path)
        return super().open(path, mode, **kwargs)


@pytest.fixture
def elsewhere() -> Elsewhere:
    fsspec.register_implementation("elsewhere", Elsewhere, clobber=True)
    system = fsspec.filesystem("elsewhere")
    Elsewhere.store.clear()
    Elsewhere.opened.clear()
    return system


def chat(text: str) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]}).encode()


def addresses(listing: Listing) -> list[str]:
    return [file.address.removeprefix("elsewhere://").removeprefix("/") for file in listing.files]


def test_a_file_a_folder_and_a_glob(elsewhere: Elsewhere) -> None:
    for name in ("b.jsonl", "a.csv.gz", "deep/c.parquet", ".hidden/d.jsonl", "deep/.e.jsonl", "README.md"):
        elsewhere.pipe(f"/bucket/{name}", b"x")
    assert addresses(ask_for_listing("elsewhere://bucket/b.jsonl")) == ["bucket/b.jsonl"]
    everything = ["bucket/a.csv.gz", "bucket/b.jsonl", "bucket/deep/c.parquet"]
    assert addresses(ask_for_listing("elsewhere://bucket")) == everything
    assert addresses(ask_for_listing("elsewhere://bucket/*.jsonl")) == ["bucket/b.jsonl"]
    assert addresses(ask_for_listing("elsewhere://bucket/**/*.parquet")) == ["bucket/deep/c.parquet"]
    assert ask_for_listing("elsewhere://bucket").summary == "3 files, 0.0 MiB"


@pytest.mark.parametrize(
    ("address", "what", "fix"),
    [
        ("elsewhere://bucket/none.jsonl", "no such file or folder there", "Check the address"),
        ("elsewhere://bucket/*.parquet", "no file matches", "Supported"),
        ("elsewhere://bucket/notes.txt", "not a supported kind", "Supported"),
        ("elsewhere://empty", "holds no data file", "Supported"),
        ("nowhere://bucket/a.jsonl", "the address can't be used: Protocol not known: nowhere", "s3://"),
        ("s3://bucket/a.jsonl", r"s3:// needs a package that is not installed", "pip install s3fs"),
        ("gs://bucket/a.jsonl", r"gs:// needs a package that is not installed", "pip install gcsfs"),
    ],
)
def test_what_can_not_be_listed(elsewhere: Elsewhere, address: str, what: str, fix: str) -> None:
    elsewhere.pipe("/bucket/notes.txt", b"x")
    elsewhere.pipe("/empty/notes.txt", b"x")
    with pytest.raises(DataError, match=what) as caught:
        ask_for_listing(address)
    assert caught.value.where == address
    assert fix in caught.value.fix


def test_no_network_and_no_answer_are_told_within_seconds(elsewhere: Elsewhere, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("Could not connect to the endpoint URL\nand more")

    monkeypatch.setattr(Elsewhere, "info", refuse)
    with pytest.raises(DataError, match=r"can't be read: Could not connect to the endpoint URL") as caught:
        ask_for_listing("elsewhere://bucket/a.jsonl")
    assert "and more" not in caught.value.what
    assert "network" in caught.value.fix
    monkeypatch.setattr(Elsewhere, "info", lambda *_: time.sleep(3))
    monkeypatch.setattr(filesystem.answered, "__defaults__", (0.2,))
    begin = time.monotonic()
    with pytest.raises(DataError, match=r"no answer within 0\.2 seconds"):
        ask_for_listing("elsewhere://bucket/a.jsonl")
    assert time.monotonic() - begin < 2


def test_rows_are_read_from_copies_and_say_the_address(elsewhere: Elsewhere, tmp_path: Path) -> None:
    elsewhere.pipe("/bucket/a.jsonl", b'{"t": 1}\n\n{broken\n')
    elsewhere.pipe("/bucket/b.jsonl.gz", gzip.compress(b'{"t": 4}\n'))
    source = SourceSection(path="elsewhere://bucket")
    for _ in range(2):
        rows = list(open_source(source, tmp_path)())
        assert [row.value for row in rows] == [{"t": 1}, None, {"t": 4}]
        places = [row.place.replace("elsewhere:///", "elsewhere://") for row in rows]
        assert places == [f"elsewhere://bucket/{place}" for place in ("a.jsonl:1", "a.jsonl:3", "b.jsonl.gz:1")]
        assert [row.share_read for row in rows][1:] == [0.5, 1.0]
    assert len(Elsewhere.opened) == 2  # the second time everything is here
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) == 2


def test_a_changed_file_is_another_one(elsewhere: Elsewhere, make_plan, tmp_path: Path) -> None:
    elsewhere.pipe("/bucket/a.jsonl", chat("one") + b"\n")
    plan = make_plan(data={"train": "elsewhere://bucket/a.jsonl"})
    first = pin_sources(plan, progress=False)
    assert [choice.key for choice in first.choices] == ["data.train.0.revision"]
    assert "the 1 file, " in first.choices[0].because
    assert len(prepare(first, progress=False).train) == 1
    elsewhere.pipe("/bucket/a.jsonl", chat("one") + b"\n" + chat("two") + b"\n")
    opened = len(Elsewhere.opened)
    assert len(prepare(first, progress=False).train) == 1  # a worker reads what the launcher has read, and asks nobody
    assert len(Elsewhere.opened) == opened
    second = pin_sources(plan, progress=False)
    assert second.recipe.data.train[0].revision != first.recipe.data.train[0].revision
    assert len(prepare(second, progress=False).train) == len(prepare(plan, progress=False).train) == 2
    with pytest.raises(DataError, match="have changed since the plan was made"):
        pinned_listing(tmp_path / "cache", "elsewhere://bucket/a.jsonl", first.recipe.data.train[0].revision)


def test_a_plan_asks_no_network(elsewhere: Elsewhere, make_plan, monkeypatch) -> None:
    elsewhere.pipe("/bucket/a.jsonl", chat("one") + b"\n")
    plan = make_plan(data={"train": "elsewhere://bucket/a.jsonl"})
    with pytest.raises(DataError, match="a plan asks no network"):
        pin_sources(plan, progress=False, ask_hub=False)
    pinned = pin_sources(plan, progress=False)
    monkeypatch.setattr(Elsewhere, "info", lambda *_: pytest.fail("asked"))
    again = pin_sources(plan, progress=False, ask_hub=False)
    assert again.recipe == pinned.recipe


def test_the_next_file_is_fetched_while_rows_of_the_last_are_used(elsewhere: Elsewhere, tmp_path: Path) -> None:
    for number in range(4):
        elsewhere.pipe(f"/bucket/{number}.jsonl", b'{"t": 1}\n{"t": 2}\n')
    rows = open_source(SourceSection(path="elsewhere://bucket"), tmp_path)()
    next(rows)
    deadline = time.monotonic() + 5
    while len(Elsewhere.opened) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(Elsewhere.opened) == 2
    rows.close()
    assert len(Elsewhere.opened) == 2


def test_a_fetch_that_breaks_leaves_nothing_and_is_an_error_of_the_data(elsewhere: Elsewhere, monkeypatch, tmp_path):
    elsewhere.pipe("/bucket/a.jsonl", b'{"t": 1}\n' * 1000)
    listing = ask_for_listing("elsewhere://bucket/a.jsonl")
    elsewhere.pipe("/bucket/a.jsonl", b'{"t": 1}\n')
    with pytest.raises(DataError, match="9 bytes came of 9,000"):
        list(copies.read_copies(listing, tmp_path))
    elsewhere.rm("/bucket/a.jsonl")
    with pytest.raises(DataError, match="can't be read"):
        list(copies.read_copies(listing, tmp_path))
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
    with pytest.raises(CheckpointError, match="can't be written"):
        list(copies.read_copies(listing, Path("/proc/nowhere")))


@pytest.fixture
def slow(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files, of which the second takes half a minute; 50 ms a chunk."""
    whole = copies._chunks

    def chunks(file: RemoteFile) -> Iterator[bytes]:
        yield from whole(file)
        for _ in range(600 * file.address.endswith("b.jsonl")):
            time.sleep(0.05)
            yield b"\n"

    monkeypatch.setattr(copies, "_chunks", chunks)
    for name in ("a", "b"):
        elsewhere.pipe(f"/bucket/{name}.jsonl", chat("one") + b"\n{broken\n" + (chat("two") + b"\n") * BLOCK_ROWS)


def files_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.rglob("*") if file.is_file())


def wait_for(name: str, folder: Path) -> None:
    deadline = time.monotonic() + 10
    while name not in files_in(folder) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert name in files_in(folder)


def test_a_fetch_that_nobody_needs_any_more_leaves_nothing(slow: None, tmp_path: Path) -> None:
    rows = open_source(SourceSection(path="elsewhere://bucket"), tmp_path)()
    next(rows)
    wait_for(".unfinished", tmp_path)
    rows.close()
    assert files_in(tmp_path) == ["a.jsonl"]


def test_nor_does_one_that_an_error_ends(slow: None, make_plan, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not JSON") as caught:
        prepare(make_plan(data={"train": "elsewhere://bucket"}), progress=False)
    assert caught.value.where.endswith("a.jsonl:2")
    assert files_in(tmp_path / "cache" / "files") == ["a.jsonl"]  # while the error is still at hand, and its frames too


def test_what_a_process_that_died_has_left_is_written_over(elsewhere: Elsewhere, tmp_path: Path) -> None:
    elsewhere.pipe("/bucket/a.jsonl", b'{"t": 1}\n')
    source = SourceSection(path="elsewhere://bucket/a.jsonl")
    list(open_source(source, tmp_path)())
    (copy,) = (file for file in tmp_path.rglob("*") if file.is_file())
    copy.rename(copy.with_name(".unfinished")).write_bytes(b"half of it, or more" * 100)
    assert [row.value for row in open_source(source, tmp_path)()] == [{"t": 1}]
    assert files_in(tmp_path) == ["a.jsonl"]


def test_a_fork_does_not_keep_a_lock(tmp_path: Path) -> None:
    """Forks are started while the next file is fetched, and share its lock's descriptor."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
    with locked(tmp_path / "a.lock"):
        descriptor = os.open(tmp_path / "a.lock", os.O_RDWR)
        child.start()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
        child.kill()
        child.join()


def test_a_damaged_file_says_its_address_and_where_the_copy_is(elsewhere: Elsewhere, tmp_path: Path) -> None:
    elsewhere.pipe("/bucket/a.jsonl.gz", b"not gzip")
    with pytest.raises(DataError, match="can't be read") as caught:
        list(open_source(SourceSection(path="elsewhere://bucket/a.jsonl.gz"), tmp_path)())
    assert caught.value.where.endswith("bucket/a.jsonl.gz")
    assert str(tmp_path) in caught.value.fix


def test_a_name_without_the_query_of_the_web() -> None:
    names = [
        RemoteFile(address, "", None).name for address in ("https://x.org/d/a.jsonl?download=true", "s3://b/a?.csv")
    ]
    assert names == ["a.jsonl", "a?.csv"]


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_a_stream_is_read_through_without_a_copy(make_plan, elsewhere: Elsewhere, tmp_path: Path, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for part in ("1", "2"):
        lines = [chat(f"{part}{number}") for number in range(50)]
        path = tmp_path / f"{part}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist([json.loads(line) for line in lines]), path)
        elif kind == "jsonl.zst":
            with pa.CompressedOutputStream(path, "zstd") as out:
                out.write(b"\n".join(lines))
        else:
            path.write_bytes(gzip.compress(b"\n".join(lines)) if kind.endswith("gz") else b"\n".join(lines))
        elsewhere.pipe(f"/bucket/{path.name}", path.read_bytes())
    source = "elsewhere://bucket"
    plan = pin_sources(make_plan(data={"train": source, "streaming": True}), progress=False)
    streamed = list(Stream(plan).epoch(0))
    assert not (tmp_path / "cache" / "files").exists()
    assert streamed[-1].position == 1.0
    kept = prepare(pin_sources(make_plan(data={"train": source}), progress=False), progress=False).train
    assert [row.chat.token_ids.tolist() for row in streamed] == [kept.row(index)[0].tolist() for index in range(100)]


def test_a_stream_that_breaks_off_and_a_bad_row_are_told_by_address(
    make_plan, elsewhere: Elsewhere, monkeypatch
) -> None:
    elsewhere.pipe("/bucket/a.jsonl", chat("a") + b"\n{\n")
    plan = pin_sources(make_plan(data={"train": "elsewhere://bucket/a.jsonl", "streaming": True}), progress=False)
    with pytest.raises(DataError, match="not JSON") as caught:
        list(Stream(plan).epoch(0))
    assert caught.value.where.endswith("bucket/a.jsonl:2")
    stream = Stream(plan)

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("the far side is gone")

    monkeypatch.setattr(Elsewhere, "open", refuse)
    with pytest.raises(DataError, match=r"can't be read: the far side is gone"):
        list(stream.epoch(0))
