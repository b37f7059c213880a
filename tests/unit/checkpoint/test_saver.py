from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from sft_cli.checkpoint import saver as saver_module
from sft_cli.checkpoint.commit import Target
from sft_cli.checkpoint.layout import complete_checkpoints, set_aside_after, unfinished_path
from sft_cli.checkpoint.progress import Progress
from sft_cli.checkpoint.saver import CheckpointSaver
from sft_cli.checkpoint.verify import verify
from sft_cli.errors import CheckpointError

Trained = tuple[nn.Module, torch.optim.Optimizer]
pytestmark = pytest.mark.usefixtures("lone_rank")


@pytest.fixture
def trained() -> Trained:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def make_saver(run: Path, trained: Trained) -> Callable[..., CheckpointSaver]:
    def make(keep: int = 2, **changes: Any) -> CheckpointSaver:
        target = Target(run, keep, **changes)
        generators = {"cpu": torch.default_generator}
        return CheckpointSaver(target, *trained, generators, torch.device("cpu"), lambda path: None)

    return make


def saved(saver: CheckpointSaver, *steps: int, **progress: Any) -> None:
    for step in steps:
        saver.save(Progress(step, 0.5, **progress))
    saver.finish()


def looked_at(saver: CheckpointSaver) -> None:
    """As the loop does, once a step."""
    for _ in range(100):
        saver.check()
        time.sleep(0.05)


@pytest.fixture
def files_of_200_bytes() -> Iterator[Callable[[int], None]]:
    """Files that may not grow, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


def test_holds_weights_moments_and_progress(make_saver: Any, run: Path, trained: Trained) -> None:
    model, optimizer = trained
    saved(make_saver(), 7)
    path = run / "step-00000007"
    assert Progress.read(path) == Progress(7, 0.5)
    read = {
        "model": {"weight": torch.zeros(4, 4)},
        "optimizer": {"state": {"weight": {"exp_avg": torch.zeros(4, 4)}}},
    }
    dcp.load(read, checkpoint_id=path)
    assert torch.equal(read["model"]["weight"], model.weight)
    assert torch.equal(read["optimizer"]["state"]["weight"]["exp_avg"], optimizer.state[model.weight]["exp_avg"])
    verify(path)


def test_what_changes_after_the_copy_is_not_saved(
    make_saver: Any, run: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on while it writes: here the writer waits until the weights have changed."""
    write = saver_module.write_checkpoint
    has_changed = saver_module.threading.Event()

    def late(*arguments: Any) -> Path:
        has_changed.wait(10)
        return write(*arguments)

    monkeypatch.setattr(saver_module, "write_checkpoint", late)
    model, _ = trained
    before = model.weight.detach().clone()
    saver = make_saver()
    saver.save(Progress(1, 0.5))
    saver.check()
    assert not complete_checkpoints(run)
    with torch.no_grad():
        model.weight.add_(1.0)
    has_changed.set()
    saver.finish()
    read = {"model": {"weight": torch.zeros(4, 4)}}
    dcp.load(read, checkpoint_id=run / "step-00000001")
    assert torch.equal(read["model"]["weight"], before)


def test_without_memory_for_a_copy_it_is_written_at_once(
    make_saver: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver_module, "available_bytes", lambda: 100)
    saver = make_saver()
    saver.save(Progress(1, 0.5))
    assert [step for step, _ in complete_checkpoints(run)] == [1]
    verify(run / "step-00000001")


def test_copies_what_belongs_beside_it(make_saver: Any, run: Path, tmp_path: Path) -> None:
    (tmp_path / "exactness.json").write_text("{}")
    saved(make_saver(beside=[tmp_path / "exactness.json"]), 1)
    assert (run / "step-00000001" / "exactness.json").read_text() == "{}"
    assert "exactness.json" in json.loads((run / "step-00000001" / "manifest.json").read_text())


def test_keeps_the_newest_and_the_best(make_saver: Any, run: Path) -> None:
    saver = make_saver(keep=2)
    saved(saver, 1)
    saved(saver, 2, best_step=2)
    saved(saver, 3, 4, 10, best_step=2)
    assert [step for step, _ in complete_checkpoints(run)] == [2, 4, 10]
    assert (run / "best").resolve() == run / "step-00000002"
    saved(saver, 11, best_step=11)
    assert [step for step, _ in complete_checkpoints(run)] == [10, 11]
    assert (run / "best").resolve() == run / "step-00000011"
    saver.mark_best(10)
    assert (run / "best").resolve() == run / "step-00000010"


def test_a_best_that_can_not_be_marked_is_an_error_of_the_disk(make_saver: Any, run: Path) -> None:
    saver = make_saver()
    saved(saver, 1)
    (run / ".best.unfinished").mkdir()
    with pytest.raises(CheckpointError, match="could not be written"):
        saver.mark_best(1)


def test_a_course_that_was_left_goes_with_the_first_save_of_the_new_one(make_saver: Any, run: Path) -> None:
    saver = make_saver(keep=9)
    saved(saver, 2, 4, 6)
    set_aside_after(run, 2)
    assert [step for step, _ in complete_checkpoints(run)] == [2]
    assert len(list(run.glob(".*"))) == 2
    saved(saver, 3)
    assert sorted(path.name for path in run.iterdir()) == ["step-00000002", "step-00000003"]


@pytest.mark.parametrize("limit", [200, 3000])
def test_a_write_that_fails_leaves_the_old_ones_whole(
    make_saver: Any, run: Path, files_of_200_bytes: Any, limit: int
) -> None:
    """torch notices at different places. The error comes at the next look, not in the middle of nowhere."""
    saver = make_saver(keep=1)
    saved(saver, 1)
    files_of_200_bytes(limit)
    saver.save(Progress(2, 0.5))
    with pytest.raises(CheckpointError, match="could not be written"):
        looked_at(saver)
    assert [path.name for path in run.iterdir()] == ["step-00000001"]
    verify(run / "step-00000001")


def test_a_disk_without_room_is_told_before_a_byte_is_written(
    make_saver: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = make_saver(keep=1)
    saved(saver, 1)
    full = shutil.disk_usage(run)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    saver.save(Progress(2, 0.5))
    with pytest.raises(CheckpointError, match=r"has 0\.0 MiB free, and 1\.0 MiB are needed \(a checkpoint"):
        saver.finish()
    assert [path.name for path in run.iterdir()] == ["step-00000001"]


def test_a_run_folder_that_is_gone_does_not_come_back_empty(trained: Trained, tmp_path: Path) -> None:
    target = Target(tmp_path / "run" / "checkpoints", 1)
    saver = CheckpointSaver(target, *trained, {}, torch.device("cpu"), lambda path: None)
    saver.save(Progress(1, 0.5))
    with pytest.raises(CheckpointError, match="the run folder is gone"):
        saver.finish()
    assert not (tmp_path / "run").exists()


def test_what_a_kill_left_is_written_over(make_saver: Any, run: Path) -> None:
    unfinished = unfinished_path(run, 1)
    unfinished.mkdir(parents=True)
    (unfinished / "__7_0.distcp").write_text("half")
    saved(make_saver(), 1)
    assert not (run / "step-00000001" / "__7_0.distcp").exists()


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a file system")
def test_a_full_file_system(trained: Trained, tmp_path: Path) -> None:
    """One of 20 MiB that something else fills between two saves, while the second is being written."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "none", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("may not mount")
    try:
        target = Target(disk / "checkpoints", 1)
        saver = CheckpointSaver(target, *trained, {}, torch.device("cpu"), lambda path: None)
        saved(saver, 1)
        with pytest.raises(OSError, match="No space left"):
            (disk / "other").write_bytes(bytes(30 * 2**20))
        saver.save(Progress(2, 0.5))
        with pytest.raises(CheckpointError, match="free"):
            saver.finish()
        assert [path.name for path in (disk / "checkpoints").iterdir()] == ["step-00000001"]
        verify(disk / "checkpoints" / "step-00000001")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
