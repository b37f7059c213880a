"""A run that was cut short and went on, or had another beside it, is the run that would have been."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kills import killed_twice
from support.sftune import command, read_metrics, sftune, tiny, training_steps

STEPS = {
    "train.max_steps": "8",
    "train.tokens_per_step": "1024",
    "evaluate.every_steps": "1",
    "checkpoint.every_steps": "2",
    "checkpoint.keep": "9",
    "launch.gpus": "2",
}
TIMES = {
    "tokens_per_second",
    "step_seconds",
    "data_wait_seconds",
    "forward_seconds",
    "backward_seconds",
    "optimizer_seconds",
    "peak_memory_gib",
    "seconds",
    "training_seconds",
}


@pytest.fixture(scope="module", autouse=True)
def heldout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two rows for all runs, so that an evaluation of every step takes no time."""
    path = tmp_path_factory.mktemp("heldout") / "rows.jsonl"
    turns = [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}]
    path.write_text(2 * (json.dumps({"messages": turns}) + "\n"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STEPS, "data.eval", json.dumps([{"path": str(path)}]))
        yield


@pytest.fixture(scope="module")
def whole(heldout: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight steps on two ranks that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    ended = sftune("train", *tiny(folder, **STEPS), cwd=folder)
    assert ended.code == 0, ended.err
    return folder / "run"


@pytest.fixture
def cut(whole: Path, tmp_path: Path) -> Path:
    """The same as a kill in the middle of step 6 and of the save after it leaves it."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "export")
    shutil.rmtree(run / "checkpoints" / "step-00000008")
    (run / "checkpoints" / "step-00000006").rename(run / "checkpoints" / ".step-00000006.unfinished")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:10]) + lines[10][:40])
    return run


def resume(run: Path, *options: str, **changes: str) -> Any:
    return sftune("train", *tiny(run.parent, **{**STEPS, **changes}), *options, cwd=run.parent)


def tensors(checkpoint: Path) -> dict[str, str]:
    """What stands for weights, moments and random states, bit for bit."""
    files = json.loads((checkpoint / "manifest.json").read_text())
    return {name: facts["xxh3"] for name, facts in files.items() if name.endswith(".distcp")}


def numbers(run: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key not in TIMES} for line in read_metrics(run)]


def assert_same(run: Path, whole: Path) -> None:
    assert tensors(run / "checkpoints" / "step-00000008") == tensors(whole / "checkpoints" / "step-00000008")
    assert numbers(run) == numbers(whole)
    assert (run / "export" / "model.safetensors").read_bytes() == (whole / "export" / "model.safetensors").read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_twice_while_it_saves_and_resumed_it_is_the_same_bit_for_bit(tmp_path: Path, whole: Path) -> None:
    """The short version of `make faults`. The first time it goes on by itself."""
    run = tmp_path / "killed" / "run"
    keys = {"checkpoint.every_steps": "1", "launch.max_restarts": "1"}
    said = killed_twice(run.parent, tiny(run.parent, **{**STEPS, **keys}))
    assert "rank 1 was killed by SIGKILL" in said
    assert "restarting from" in said
    assert not (run / "export").exists()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "lo')  # as a kill in the middle of a line leaves it
    ended = resume(run, "--resume", **keys)
    assert ended.code == 0, ended.err
    assert_same(run, whole)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [f"step-0000000{n}" for n in range(1, 9)]
    again = resume(run, "--resume", **keys)
    assert (again.code, "this run is done: 8 of 8 steps" in again.out) == (0, True)
    # Killed during its export, it would have left neither.
    shutil.rmtree(run / "export")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert resume(run, "--resume", **keys).code == 0
    assert_same(run, whole)


def test_told_to_stop_it_saves_and_what_it_did_not_evaluate_is_evaluated_when_it_goes_on(
    tmp_path: Path, whole: Path
) -> None:
    """Every step is one to be evaluated, and a stop waits for no evaluation."""
    run = tmp_path / "run"
    keys = {"evaluate.keep_best": "true"}
    words = command("train", *tiny(tmp_path, **{**STEPS, **keys}))
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    events = run / "logs" / "events.jsonl"
    while not (events.exists() and '"started"' in events.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    last = read_metrics(run)[-1]
    assert "loss" in last, "neither an evaluation nor an end"
    checkpoint = run / "checkpoints" / f"step-{last['step']:08d}"
    assert json.loads((checkpoint / "progress.json").read_text())["owes_evaluation"]
    assert not (run / "export").exists()
    ended = resume(run, "--resume", **keys)
    assert ended.code == 0, ended.err
    assert_same(run, whole)
    losses = {line["step"]: line["eval_loss"] for line in read_metrics(run) if "step" in line and "eval_loss" in line}
    best = min(losses, key=lambda step: losses[step])
    assert (run / "checkpoints" / "best").resolve().name == f"step-{best:08d}"
    assert not json.loads((run / "checkpoints" / "step-00000008" / "progress.json").read_text())["owes_evaluation"]


@pytest.mark.long
def test_a_leftover_is_named_and_removed(cut: Path, whole: Path) -> None:
    ended = resume(cut, "--resume")
    assert ended.code == 0, ended.err
    assert ".step-00000006.unfinished: it was not finished" in ended.out
    assert "after step 4" in ended.out
    assert_same(cut, whole)
    assert sorted(path.name for path in (cut / "checkpoints").iterdir()) == [f"step-0000000{n}" for n in (2, 4, 6, 8)]


@pytest.mark.long
def test_beside_another_run_it_is_the_same_too(tmp_path: Path, whole: Path) -> None:
    """Two runs of two ranks begin at once, and both tokenise the same rows into the same empty cache. The other one has
    other numbers: a rank, a port or a file of one in the other would show."""
    both = {**STEPS, "data.cache_dir": str(tmp_path / "cache")}
    started = []
    for name, seed in (("one", "0"), ("other", "1")):
        (tmp_path / name).mkdir()
        words = command("train", *tiny(tmp_path / name, **both, **{"train.seed": seed}))
        started.append(subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=240)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert_same(tmp_path / "one" / "run", whole)
    one, other = (training_steps(tmp_path / name / "run") for name in ("one", "other"))
    assert [line["step"] for line in other] == [line["step"] for line in one]
    assert not {line["batch_hash"] for line in other} & {line["batch_hash"] for line in one}


@pytest.mark.long
def test_replayed_steps_are_those_that_were_logged(cut: Path, whole: Path) -> None:
    ended = resume(cut, "--resume", "--verify", "3")
    assert ended.code == 0, ended.err
    assert "replayed steps 3 to 5: 3 compared, equal bit for bit" in ended.out
    assert_same(cut, whole)


@pytest.mark.long
def test_a_step_that_is_not_what_was_logged_ends_with_5(cut: Path) -> None:
    lines = [json.loads(line) for line in (cut / "metrics.jsonl").read_text().splitlines()[:10]]
    lines[4]["loss"] += 1e-6
    lines[6]["batch_hash"] = "0" * 12
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (cut / "metrics.jsonl").write_text(text)
    ended = resume(cut, "--resume", "--verify", "3")
    assert ended.code == 5
    assert "from step 3 on: loss" in ended.err
    assert (cut / "metrics.jsonl").read_text() == text


@pytest.mark.long
def test_a_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    stream = {"data.streaming": "true", "train.max_steps": "4"}
    run = tmp_path / "run"
    assert resume(run, **stream).code == 0
    whole = tmp_path / "whole"
    shutil.copytree(run, whole)
    for path in (run / "export", run / "checkpoints" / "step-00000004"):
        shutil.rmtree(path)
    ended = resume(run, "--resume", **stream)
    assert ended.code == 0, ended.err
    assert tensors(run / "checkpoints" / "step-00000004") == tensors(whole / "checkpoints" / "step-00000004")
    assert numbers(run) == numbers(whole)
    refused = resume(run, "--resume", "--verify", "1", **stream)
    assert (refused.code, "can't be replayed" in refused.err) == (2, True)
