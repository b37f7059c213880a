from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.run_folders import Line, run_in, step, write_run

from sft_cli.telemetry.report.events import events_of
from sft_cli.telemetry.report.state import lately, state_of

STARTED = {"time": "2026-11-30T11:00:00+00:00", "event": "started", "step": 0, "resumed_from": None}
STOPPED = {**STARTED, "event": "stopped", "signal": "SIGTERM"}
FAILED = {**STARTED, "event": "failed", "what": "the disk is full", "where": "x", "fix": "buy one", "exit_code": 5}


@pytest.mark.parametrize(
    ("lines", "events", "is_on", "word"),
    [
        ([], [], False, "not begun"),
        ([], [STARTED], True, "starting"),
        ([step(1)], [STARTED], True, "running"),
        ([step(1)], [STARTED, FAILED], True, "running"),  # it was restarted
        ([step(1)], [STARTED], False, "broken off"),
        ([step(1)], [], None, "not done"),
        ([step(1)], [STARTED, STOPPED], False, "stopped"),
        ([step(1)], [STARTED, FAILED], False, "failed"),
        ([step(1)], [STARTED, STOPPED, STARTED, FAILED], False, "failed"),
        ([step(1), {"event": "done"}], [STARTED, FAILED, STARTED], False, "done"),
        ([step(1), {"event": "done"}], [STARTED], None, "done"),
    ],
)
def test_words(tmp_path: Path, lines: list[Line], events: list[Line], is_on: bool | None, word: str) -> None:
    assert state_of(run_in(write_run(tmp_path, lines, events), is_on=is_on)).word == word


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("events", [[STARTED], [STARTED, STOPPED]])
def test_nobody_is_sent_to_a_checkpoint_that_was_never_asked_for(
    tmp_path: Path, events: list[Line], saves: bool
) -> None:
    plan = {"recipe": {"checkpoint": {"enabled": saves}}}
    run = run_in(write_run(tmp_path, [step(1)], events, plan=plan), is_on=False)
    assert ("--resume" in state_of(run).text) == saves
    assert ("after a checkpoint" in state_of(run).text) == (saves and STOPPED in events)
    assert any("after a checkpoint" in event.text for event in events_of(run)) == (saves and STOPPED in events)


def test_a_running_one_says_what_is_left(tmp_path: Path) -> None:
    lines = [step(number, step_seconds=2.0) for number in range(1, 11)]
    run = run_in(write_run(tmp_path, lines, [STARTED], plan={"steps": 100}), is_on=True)
    assert "About 3:00 of training left" in state_of(run).text


def test_rates_of_the_present_are_those_of_the_last_lines(tmp_path: Path) -> None:
    lines = [step(number, tokens_per_second=float(number > 50)) for number in range(1, 201)]
    run = run_in(write_run(tmp_path, lines))
    assert lately(run, "tokens_per_second") == 1.0
    assert lately(run, "mfu") is None


@pytest.mark.parametrize("plan", [{"steps": None}, {"steps": "many"}, {}, [1], "x", {"steps": True}])
def test_a_plan_of_another_kind_is_no_obstacle(tmp_path: Path, plan: Any) -> None:
    run = run_in(write_run(tmp_path, [step(1)], [STARTED], plan=plan), is_on=True)
    assert "left" not in state_of(run).text
