"""A run that was cut short and went on, or had another beside it, is the run that would have been."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.finished_run import finished_run, keys
from support.kills import killed_twice, killed_while_it_saves
from support.sftune import command, read_metrics, sftune, tiny, training_steps

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

SAVES = {"checkpoint.every_steps": "1", "evaluate.keep_best": "true"}


@pytest.fixture(scope="module")
def whole() -> Path:
    """A run of eight steps on two ranks that nothing disturbed."""
    return finished_run() / "run"


@pytest.fixture
def cut(whole: Path, tmp_path: Path) -> Path:
    """The same as a kill in the middle of step 6 and of the save after it leaves it."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "export")
    shutil.rmtree(run / "checkpoints" / "step-00000008")
    (run / "checkpoints" / "step-00000006").rename(run / "checkpoints" / ".step-00000006.unfinished")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:11]) + lines[11][:40])
    return run


def resume(run: Path, *options: str, **changes: str) -> Any:
    return sftune("train", *tiny(run.parent, **{**keys(), **changes}), *options, cwd=run.parent)


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
def test_killed_resumed_and_killed_again_it_is_the_same_bit_for_bit(cut: Path, whole: Path) -> None:
    """`cut` is how the first kill left it; from the second one, amid a save, it goes on by itself."""
    words = tiny(cut.parent, **{**keys(), **SAVES, "launch.max_restarts": "1"})
    ended = killed_while_it_saves(cut, [*words, "--resume"])
    assert ended.code == 0, ended.err
    assert ".step-00000006.unfinished: it was not finished" in ended.out
    assert "after step 4" in ended.out
    assert "rank 1 was killed by SIGKILL" in ended.err
    assert "restarting from" in ended.err
    assert_same(cut, whole)
    assert_saved_and_best_linked(cut, saved=[2, *range(4, 9)], since=5)
    again = resume(cut, "--resume", **SAVES)
    assert (again.code, "this run is done: 8 of 8 steps" in again.out) == (0, True)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_twice_while_it_saves_and_resumed_it_is_the_same_bit_for_bit(tmp_path: Path, whole: Path) -> None:
    """The short version of `make faults`. The first time it goes on by itself."""
    run = tmp_path / "killed" / "run"
    said = killed_twice(run.parent, tiny(run.parent, **{**keys(), **SAVES, "launch.max_restarts": "1"}))
    assert "rank 1 was killed by SIGKILL" in said
    assert "restarting from" in said
    assert not (run / "export").exists()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "lo')  # as a kill in the middle of a line leaves it
    ended = resume(run, "--resume", **SAVES)
    assert ended.code == 0, ended.err
    assert_same(run, whole)
    assert_saved_and_best_linked(run, saved=list(range(1, 9)), since=1)


def assert_saved_and_best_linked(run: Path, *, saved: list[int], since: int) -> None:
    """
    Args:
        since: the first step from which the best checkpoint was kept.
    """
    losses = {line["step"]: line["eval_loss"] for line in read_metrics(run) if "step" in line and "eval_loss" in line}
    best = min(range(since, 9), key=lambda step: losses[step])
    assert (run / "checkpoints" / "best").resolve().name == f"step-{best:08d}"
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["best", *(f"step-0000000{n}" for n in saved)]


@pytest.mark.long
def test_stopped_before_it_has_evaluated_it_owes_that(cut: Path, whole: Path) -> None:
    code, said = stopped_at_its_start(cut, "--resume", **SAVES)
    assert code == 143, said
    last = read_metrics(cut)[-1]
    assert "loss" in last, "neither an evaluation, which a stop does not wait for, nor an end"
    assert sorted(path.name for path in (cut / "checkpoints").glob("step-*"))[-1] == f"step-{last['step']:08d}"
    assert progress(cut, last["step"])["owes_evaluation"]
    assert not (cut / "export").exists()
    ended = resume(cut, "--resume", **SAVES)
    assert ended.code == 0, ended.err
    assert_same(cut, whole)
    assert not progress(cut, 8)["owes_evaluation"]


def stopped_at_its_start(run: Path, *options: str, **changes: str) -> tuple[int, str]:
    """Told to stop between its start and its first step; returns its code and what it said of it."""
    events = run / "logs" / "events.jsonl"
    starts = events.read_text().count('"started"')
    words = command("train", *tiny(run.parent, **{**keys(), **changes}), *options)
    process = subprocess.Popen(words, cwd=run.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while events.read_text().count('"started"') == starts:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    return process.returncode, said


def progress(run: Path, step: int) -> Any:
    return json.loads((run / "checkpoints" / f"step-{step:08d}" / "progress.json").read_text())


@pytest.mark.long
def test_lost_in_its_export_it_makes_that_again(tmp_path: Path, whole: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "export")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert resume(run, "--resume").code == 0
    assert_same(run, whole)


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
    both = {**keys(), "data.cache_dir": str(tmp_path / "cache")}
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
def test_after_a_replay_updates_in_backward_are_those_that_would_have_been(tmp_path: Path) -> None:
    # Their hooks outlive the state that is loaded once more.
    changes = {
        "optimizer.in_backward": "true",
        "optimizer.name": "adamw_8bit",
        "train.max_grad_norm": "null",
        "train.tokens_per_step": "512",
        "train.max_steps": "8",
        "checkpoint.every_steps": "4",
    }
    run, whole = tmp_path / "run", tmp_path / "whole"
    ended = sftune("train", *tiny(tmp_path, **changes), cwd=tmp_path)
    assert ended.code == 0, ended.err
    shutil.copytree(run, whole)
    for path in (run / "export", run / "checkpoints" / "step-00000008"):
        shutil.rmtree(path)
    ended = sftune("train", *tiny(tmp_path, **changes), "--resume", "--verify", "2", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "replayed steps 5 to 6: 2 compared, equal bit for bit" in ended.out
    assert_same(run, whole)


@pytest.mark.long
def test_a_step_that_is_not_what_was_logged_ends_with_5(cut: Path) -> None:
    lines = [json.loads(line) for line in (cut / "metrics.jsonl").read_text().splitlines()[:11]]
    lines[5]["loss"] += 1e-6
    lines[7]["batch_hash"] = "0" * 12
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
