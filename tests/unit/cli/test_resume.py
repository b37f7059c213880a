"""`sftune train --resume` and its kin, up to what the workers are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Ended

from sft_cli.checkpoint.manifest import file_facts, write_manifest
from sft_cli.checkpoint.progress import Progress
from sft_cli.data.prepare import PreparedData
from sft_cli.data.report import DataReport
from sft_cli.data.rows import rows_from_lists
from sft_cli.errors import DataError, SftError
from sft_cli.launch.resume import Resume
from sft_cli.plan.plan import Plan, World

Run = Callable[..., Ended]
RUN = Path("runs/tiny")
CHECKPOINTS = RUN / "checkpoints"
EIGHT_STEPS = ("--set", "train.max_steps=8", "--set", "train.tokens_per_step=512", "--set", "train.epochs=9")


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(autouse=True)
def _twenty_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_from_lists([([1] * 100, [0] + [1] * 99)] * 20)
    monkeypatch.setattr(
        "sft_cli.data.prepare.prepare", lambda plan, *, progress: PreparedData(rows, None, DataReport((), ()))
    )


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Resume | None]:
    """What the workers were told to restore, each time they were started."""
    calls: list[Resume | None] = []

    def run_workers(plan: Path, world: World, logs: Path, *, resume: Resume | None, **options: Any) -> int:
        calls.append(resume)
        return 0

    monkeypatch.setattr("sft_cli.launch.supervise.run_workers", run_workers)
    return calls


def write_checkpoint(step: int, ranks: int = 1, folder: Path = CHECKPOINTS, **progress: Any) -> Path:
    path = folder / f"step-{step:08d}"
    path.mkdir(parents=True)
    (path / "__0_0.distcp").write_bytes(bytes(100))
    Progress(step, 0.5, ranks, 0, step, **progress).write(path)
    (path / "plan.json").write_text((RUN / "plan.json").read_text())
    write_manifest(path, {file.name: file_facts(file) for file in path.iterdir()})
    return path.absolute()


def write_metrics(steps: int, *, done: bool = False) -> None:
    lines = [{"step": step, "loss": 1.0, "grad_norm": 1.0, "batch_hash": "0"} for step in range(1, steps + 1)]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, *([{"event": "done"}] if done else [])])
    (RUN / "metrics.jsonl").write_text(text)


@pytest.fixture
def saved(sftune: Run, told: list[Resume | None]) -> list[Path]:
    """Checkpoints of steps 2 and 4 of a run of eight that was killed in its sixth."""
    assert sftune("train", *EIGHT_STEPS).code == 0
    told.clear()
    write_metrics(5)
    return [write_checkpoint(2), write_checkpoint(4)]


def test_the_newest_is_taken_and_leftovers_are_named_and_removed(
    sftune: Run, told: list[Resume | None], saved: list[Path]
) -> None:
    (CHECKPOINTS / ".step-00000006.unfinished").mkdir()
    ended = sftune("train", *EIGHT_STEPS, "--resume")
    assert ended.code == 0, ended.err
    assert told == [Resume(saved[1])]
    assert "after step 4" in ended.out
    assert ".step-00000006.unfinished: it was not finished" in ended.out
    assert sorted(path.name for path in CHECKPOINTS.iterdir()) == ["step-00000002", "step-00000004"]


def test_a_named_one_is_taken(sftune: Run, told: list[Resume | None], saved: list[Path]) -> None:
    assert sftune("train", *EIGHT_STEPS, "--resume-from", "runs/tiny/checkpoints/step-00000002").code == 0
    assert told == [Resume(saved[0])]


def test_a_named_one_of_another_run_needs_a_free_folder(
    sftune: Run, told: list[Resume | None], saved: list[Path]
) -> None:
    options = (*EIGHT_STEPS, "--resume-from", str(saved[1]), "--set")
    assert sftune("train", *options, "output_dir=other").code == 0
    Path("other/metrics.jsonl").write_text("{}\n")
    assert sftune("train", *options, "output_dir=other").code == 2
    assert sftune("train", *options, "output_dir=other", "--overwrite").code == 0
    assert told == [Resume(saved[1])] * 2


def test_without_a_checkpoint_it_says_so_and_starts_at_step_0(sftune: Run, told: list[Resume | None]) -> None:
    sftune("train", *EIGHT_STEPS)
    write_metrics(1)
    ended = sftune("train", *EIGHT_STEPS, "--resume")
    assert ended.code == 0, ended.err
    assert "no complete checkpoint to resume from: starting at step 0" in ended.out
    assert told == [None, None]
    assert not (RUN / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--resume", "--resume-from", "x"), "--resume-from the one named"),
        (("--resume", "--overwrite"), "would delete what the run is to go on from"),
        (("--resume-from", "runs/tiny/checkpoints/step-00000002", "--overwrite"), "would delete"),
        (("--verify", "2"), "Add --resume"),
        (("--resume", "--verify", "0"), "can't be replayed"),
        (("--resume", "--verify", "4"), "3 are logged after the oldest checkpoint, of step 2"),
    ],
)
def test_options_that_contradict_each_other(
    sftune: Run, told: list[Resume | None], saved: list[Path], options: tuple[str, ...], what: str
) -> None:
    ended = sftune("train", *EIGHT_STEPS, *options)
    assert ended.code == 2
    assert what in ended.err
    assert told == []


@pytest.mark.parametrize(("steps", "chosen"), [("1", 1), ("2", 0), ("3", 0)])
def test_a_replay_starts_from_the_newest_that_enough_logged_steps_follow(
    sftune: Run, told: list[Resume | None], saved: list[Path], steps: str, chosen: int
) -> None:
    assert sftune("train", *EIGHT_STEPS, "--resume", "--verify", steps).code == 0
    assert told == [Resume(saved[1], saved[chosen], int(steps))]


def test_another_plan_is_refused_with_every_key_and_nothing_touched(
    sftune: Run, told: list[Resume | None], saved: list[Path]
) -> None:
    before = {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()}
    changes = ("--set", "optimizer.learning_rate=0.5", "--set", "train.seed=3")
    ended = sftune("train", *EIGHT_STEPS, *changes, "--resume")
    assert ended.code == 2
    assert "--set optimizer.learning_rate=0.5: can't change on resume: 0.0015 in the checkpoint, 0.5 now" in ended.err
    assert "--set train.seed=3: can't change on resume: 0 in the checkpoint, 3 now" in ended.err
    assert told == []
    assert {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()} == before


def test_what_can_not_be_kept_is_told(sftune: Run, told: list[Resume | None], saved: list[Path]) -> None:
    """On two ranks a step takes two packs: six steps more would need twelve, and are cut at max_steps."""
    ended = sftune("train", *EIGHT_STEPS, "--resume", "--set", "launch.gpus=2", "--set", "train.max_steps=6")
    assert ended.code == 0, ended.err
    assert "not as before: launch.gpus: 1 in the checkpoint, 2 now; the order of the data is kept" in ended.out
    assert "not as before: train.max_steps: 8 in the checkpoint, 6 now" in ended.out
    assert Plan.read(RUN / "plan.json").steps == 6


def test_other_data_is_another_run(
    sftune: Run, told: list[Resume | None], saved: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_from_lists([([1] * 99 + [2], [0] + [1] * 99)] * 20)
    monkeypatch.setattr(
        "sft_cli.data.prepare.prepare", lambda plan, *, progress: PreparedData(rows, None, DataReport((), ()))
    )
    ended = sftune("train", *EIGHT_STEPS, "--resume")
    assert ended.code == 2
    assert "data.train: can't change on resume" in ended.err


def test_a_damaged_newest_one_is_named_and_not_silently_passed_over(
    sftune: Run, told: list[Resume | None], saved: list[Path]
) -> None:
    (saved[1] / "__0_0.distcp").write_bytes(bytes(99))
    ended = sftune("train", *EIGHT_STEPS, "--resume")
    assert ended.code == 5
    assert "__0_0.distcp has 99 bytes" in ended.err
    assert f"--resume-from {saved[0]}" in ended.err
    assert told == []


def test_a_plan_of_another_version_is_no_bug(sftune: Run, told: list[Resume | None], saved: list[Path]) -> None:
    (saved[1] / "plan.json").write_text("{}")
    write_manifest(
        saved[1], {file.name: file_facts(file) for file in saved[1].iterdir() if "manifest" not in file.name}
    )
    ended = sftune("train", *EIGHT_STEPS, "--resume")
    assert ended.code == 5
    assert "the plan in this checkpoint can't be read" in ended.err


def test_a_checkpoint_that_is_not_there(sftune: Run, told: list[Resume | None]) -> None:
    ended = sftune("train", "--resume-from", "nowhere")
    assert ended.code == 5
    assert "no such folder" in ended.err


@pytest.mark.parametrize("export", [True, False])
def test_a_finished_run_is_done_once_its_export_is_there(
    sftune: Run, told: list[Resume | None], saved: list[Path], export: bool
) -> None:
    newest = write_checkpoint(8)
    write_metrics(8, done=True)
    if export:
        (RUN / "export").mkdir()
    ended = sftune("train", *EIGHT_STEPS, "--resume")
    assert ended.code == 0, ended.err
    assert ("this run is done: 8 of 8 steps" in ended.out) is export
    assert told == ([] if export else [Resume(newest)])


def test_a_lost_rank_restarts_from_the_newest(sftune: Run, saved: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Resume | None] = []

    def run_workers(plan: Path, world: World, logs: Path, *, resume: Resume | None, **options: Any) -> int:
        calls.append(resume)
        if len(calls) == 1:
            write_checkpoint(6)
            raise SftError("rank 1 was killed by SIGKILL")
        if len(calls) == 2:
            raise SftError("rank 0 was killed by SIGKILL")
        raise DataError("not to be tried again")

    monkeypatch.setattr("sft_cli.launch.supervise.run_workers", run_workers)
    ended = sftune("train", *EIGHT_STEPS, "--resume", "--set", "launch.max_restarts=5")
    assert ended.code == 3
    six = Resume(saved[1].with_name("step-00000006"))
    assert calls == [Resume(saved[1]), six, six]
    assert "rank 1 was killed by SIGKILL\nrestarting from" in ended.err
    assert "4 restarts are left" in ended.err


def test_a_lost_rank_restarts_where_the_run_had_begun_until_it_has_saved(
    sftune: Run, saved: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from the checkpoint of step 4, which --resume-from has turned away from."""
    calls: list[Resume | None] = []

    def run_workers(*arguments: Any, resume: Resume | None, **options: Any) -> int:
        calls.append(resume)
        if len(calls) == 1:
            raise SftError("rank 1 was killed by SIGKILL")
        return 0

    monkeypatch.setattr("sft_cli.launch.supervise.run_workers", run_workers)
    ended = sftune("train", *EIGHT_STEPS, "--resume-from", str(saved[0]), "--set", "launch.max_restarts=1")
    assert ended.code == 0, ended.err
    assert calls == [Resume(saved[0]), Resume(saved[0])]


def test_a_stream_goes_on_with_as_many_ranks(sftune: Run, told: list[Resume | None], saved: list[Path]) -> None:
    path = write_checkpoint(5, ranks=2)
    progress = Progress.read(path)
    replace(progress, data_epoch=None, micro_batches=None).write(path)
    write_manifest(path, {file.name: file_facts(file) for file in path.iterdir() if file.name != "manifest.json"})
    ended = sftune("train", *EIGHT_STEPS, "--resume")
    assert ended.code == 2
    assert "launch.gpus: 2 ranks had begun to read this stream, and 1 can't go on with it" in ended.err
    assert told == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_finished_run_is_done_on_every_rank_of_torchrun(
    sftune: Run, saved: list[Path], monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    write_checkpoint(8)
    write_metrics(8, done=True)
    (RUN / "export").mkdir()
    monkeypatch.setattr("sft_cli.launch.join.exec_worker", lambda *arguments, **options: pytest.fail("it has ended"))
    join_torchrun(monkeypatch, rank)
    assert sftune("train", *EIGHT_STEPS, "--resume").code == 0


def join_torchrun(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": 29500}
    for name, value in {**environment, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_of_torchrun_restores_the_same(
    sftune: Run, saved: list[Path], monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    restored: list[Resume | None] = []

    def exec_worker(*arguments: Any, resume: Resume | None, **options: Any) -> None:
        restored.append(resume)
        raise SystemExit(0)

    monkeypatch.setattr("sft_cli.launch.join.exec_worker", exec_worker)
    join_torchrun(monkeypatch, rank)
    ended = sftune("train", *EIGHT_STEPS, "--resume")
    assert (ended.code, restored) == (0, [Resume(saved[1])]), ended.err


def test_a_disk_without_room_for_one_checkpoint(
    sftune: Run, told: list[Resume | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    full = shutil.disk_usage(".")._replace(free=17 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    ended = sftune("train", *EIGHT_STEPS)
    assert ended.code == 5
    assert "(export 4.5 MiB, a checkpoint 13.4 MiB)" in ended.err
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full._replace(free=25 * 2**20))
    ended = sftune("train", *EIGHT_STEPS, "--set", "checkpoint.every_steps=1")
    assert ended.code == 0
    assert "WARNING: 1 more checkpoints of 0.01 GiB fit on this disk" in ended.out
    assert sftune("train", *EIGHT_STEPS, "--set", "checkpoint.enabled=false").code == 0
