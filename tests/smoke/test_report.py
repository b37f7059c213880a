"""`sftune report` of a real run, while it is on and when it is done."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from support.sftune import command, sftune, tiny

EVALUATED = {"data.eval": "[{path: builtin:chat, split: heldout}]", "train.max_steps": "6"}


@pytest.mark.long
def test_of_a_run_that_is_on_and_of_the_same_when_it_is_done(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with (tmp_path / "out.txt").open("w") as out:
        training = subprocess.Popen(
            command("train", *tiny(tmp_path, **EVALUATED)), cwd=tmp_path, stdout=out, stderr=subprocess.STDOUT
        )
        metrics = run / "metrics.jsonl"
        while not (metrics.is_file() and b"\n" in metrics.read_bytes()):
            assert training.poll() is None, (tmp_path / "out.txt").read_text()
            time.sleep(0.02)
        during = sftune("report", "run", cwd=tmp_path)
        assert training.wait(timeout=240) == 0, (tmp_path / "out.txt").read_text()
    assert during.code == 0, during.err
    assert "report.html: running, step " in during.out
    after = sftune("report", "run", cwd=tmp_path)
    assert after.out == "wrote run/report.html: done, step 6\n"
    page = (run / "report.html").read_text()
    for part in (
        "began at step 0",
        "exactness gate: packed",
        "saved ",
        "exporting to ",
        "done · 6 steps",
        "steps of 6",
    ):
        assert part in page, part
    events = [json.loads(line)["event"] for line in (run / "logs" / "events.jsonl").read_text().splitlines()]
    assert (events.count("started"), events[-1]) == (1, "ended")
    (source,) = json.loads((run / "data.json").read_text())["train"]
    assert f"{source['rows_in']:,}</td><td class=n>{source['rows_out']:,}</td>" in page
