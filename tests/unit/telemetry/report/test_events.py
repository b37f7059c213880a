from __future__ import annotations

from pathlib import Path

from support.run_folders import run_in, step, write_run

from sft_cli.telemetry.report.events import Event, events_of

AT = {"time": "2026-11-30T11:00:00+00:00"}
SHOWN = "2026-11-30 11:00:00"
PAUSES = "with evaluations and checkpoints"


def test_in_words(tmp_path: Path) -> None:
    events = [
        {**AT, "event": "started", "step": 0, "resumed_from": None},
        {**AT, "event": "said", "message": "saved x"},
        {**AT, "event": "said", "message": "WARNING: odd"},
        {**AT, "event": "failed", "where": "a.jsonl:3", "what": "bad row", "fix": "mend it", "exit_code": 3},
        {**AT, "event": "started", "step": 7, "resumed_from": "x/step-00000007"},
        {**AT, "event": "stopped", "signal": "SIGTERM"},
        {**AT, "event": "ended"},
        {"time": 5, "event": "of tomorrow", "colour": "blue"},
        "half a li",
    ]
    lines = [
        step(1, gpu_clock_limits=["thermal slowdown"]),
        step(2, loss=None),
        "broken\n",
        {"event": "done", "steps": 2, "tokens": 180, "seconds": 61, "eval_loss": 0.5},
    ]
    assert events_of(run_in(write_run(tmp_path, lines, events))) == [
        Event(SHOWN, "", "began at step 0"),
        Event(SHOWN, "", "saved x"),
        Event(SHOWN, "bad", "WARNING: odd"),
        Event(SHOWN, "bad", "a.jsonl:3: bad row: mend it"),
        Event(SHOWN, "note", "went on after step 7, from x/step-00000007"),
        Event(SHOWN, "note", "stopped by SIGTERM, after a checkpoint"),
        Event(SHOWN, "good", "ended"),
        Event("", "", "of tomorrow colour blue"),
        Event("step 1", "note", "GPU clock limits: thermal slowdown, in 1 line"),
        Event("step 2", "bad", "loss or gradient was not a finite number: 2"),
        Event("", "bad", "1 line of metrics.jsonl can't be read"),
        Event("", "good", f"done · 2 steps · 180 real tokens · 1:01 {PAUSES} · evaluation loss 0.5"),
    ]  # fmt: skip


def test_of_very_many_the_last_are_kept(tmp_path: Path) -> None:
    events = [{**AT, "event": "said", "message": str(number)} for number in range(1500)]
    found = events_of(run_in(write_run(tmp_path, [], events)))
    assert [found[0].text, found[-1].text] == ["500", "1499"]
