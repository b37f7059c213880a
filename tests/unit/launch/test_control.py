from __future__ import annotations

import os
from pathlib import Path

import pytest

from sft_cli.errors import DataError
from sft_cli.launch.control import ControlFolder, Outcome
from sft_cli.launch.failures import describe_failure


@pytest.fixture
def control(tmp_path: Path) -> ControlFolder:
    folder = ControlFolder(tmp_path / "control")
    folder.create()
    return folder


def test_empty_at_first(control: ControlFolder) -> None:
    assert (control.pids(), control.outcomes(), control.failures(), control.exits()) == ({}, {}, {}, {})


def test_what_one_side_writes_the_other_reads(control: ControlFolder) -> None:
    failure = describe_failure(DataError("Ünlesbar", where="chat.jsonl:104"), rank=11)
    control.register(0)
    control.write_outcome(Outcome(rank=0, stopped_by=15))
    control.write_failure(failure)
    control.write_exits({1: -9})
    assert control.pids() == {0: os.getpid()}
    assert control.outcomes() == {0: Outcome(0, 15)}
    assert control.failures() == {11: failure}
    assert control.exits() == {1: -9}


def test_unfinished_files_are_not_seen(control: ControlFolder) -> None:
    (control.path / "errors" / ".rank-0.json.unfinished").write_text('{"time": 1')
    assert control.failures() == {}
