from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sft_cli.errors import DataError
from sft_cli.launch.event_log import EventLog


def events_in(path: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        assert datetime.fromisoformat(event.pop("time")).tzinfo is not None
    return events


def test_events_are_appended_with_their_time(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path).note("started", step=0, resumed_from=None)
    EventLog(path).said("two\nlines")
    assert events_in(path) == [
        {"event": "started", "step": 0, "resumed_from": None},
        {"event": "said", "message": "two\nlines"},
    ]


def test_an_error_is_one_and_goes_on_its_way(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with pytest.raises(DataError), EventLog(path).noting_failure():
        raise DataError("bad row", where="a.jsonl:3", fix="Mend it.")
    with EventLog(path).noting_failure():
        pass
    assert events_in(path) == [
        {"event": "failed", "what": "bad row", "where": "a.jsonl:3", "fix": "Mend it.", "exit_code": 3}
    ]


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError), EventLog(tmp_path / "gone" / "events.jsonl").noting_failure():
        raise DataError("bad row")
