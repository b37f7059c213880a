from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.traces import MAIN, Events, gpu_step

from sft_cli.telemetry.profile import trace_file
from sft_cli.telemetry.profile.events import read_trace
from sft_cli.telemetry.profile.trace_file import read_events, write_compact


def test_events_come_one_by_one_wherever_a_read_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = gpu_step()
    path = events.write(tmp_path / "trace.json")
    for size in (1, 7, 100, 1 << 20):
        monkeypatch.setattr(trace_file, "_CHUNK", size)
        assert list(read_events(path)) == events


def test_a_file_that_breaks_off_or_is_no_trace_says_so(tmp_path: Path) -> None:
    text = gpu_step().write(tmp_path / "trace.json").read_text()
    (tmp_path / "cut.json").write_text(text[: len(text) // 2])
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="breaks off"):
        list(read_events(tmp_path / "cut.json"))
    with pytest.raises(ValueError, match="no list of events"):
        list(read_events(tmp_path / "other.json"))
    with pytest.raises(ValueError, match="no profiled step"):
        read_trace(Events().write(tmp_path / "empty.json"))


def test_the_compact_trace_is_the_same_to_a_reader(tmp_path: Path) -> None:
    events = gpu_step()
    events.append({"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "id": 1, "pid": 1, "tid": 1, "ts": events[0]["ts"]})
    source, target = events.write(tmp_path / "trace.json"), tmp_path / "trace.json.gz"
    assert write_compact(source, target) == 1
    assert read_trace(target) == read_trace(source)
    with gzip.open(target, "rt") as file:
        content = json.load(file)  # what other programs read
    assert len(content["traceEvents"]) == len(events) - 1
    assert not any("External id" in event.get("args", {}) for event in content["traceEvents"])


def test_a_trace_that_is_too_large_keeps_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events()
    events.step(3, 0, 50_000)
    events.step(4, 50_000, 100_000)
    for at in range(2_000):
        events.op(f"aten::op{at * 7919 % 1000}", at * 50, at * 50 + 11.5 + at % 17, MAIN)
    source, target = events.write(tmp_path / "trace.json"), tmp_path / "trace.json.gz"
    write_compact(source, target)
    most = target.stat().st_size // 3
    parsed = 0

    def counted(path: Path) -> Iterator[trace_file.Json]:
        nonlocal parsed
        parsed += 1
        yield from read_events(path)

    monkeypatch.setattr(trace_file, "read_events", counted)
    share = write_compact(source, target, most_bytes=most)
    monkeypatch.undo()
    assert parsed == 1
    assert {path.name for path in tmp_path.iterdir()} == {"trace.json", "trace.json.gz"}
    assert 0.1 < share < 0.34
    assert target.stat().st_size <= most
    kept = read_trace(target).operations
    assert len(kept) == pytest.approx(2_000 * share, rel=0.05)
    assert [one.name for one in kept] == [event["name"] for event in events[2 : 2 + len(kept)]]
