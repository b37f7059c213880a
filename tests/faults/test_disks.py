"""Whole runs on disks that fill up, refuse, lose a folder or a bit. `make faults`; tests/unit/checkpoint has parts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import Ended
from support.sftune import command, sftune, tiny

from sft_cli.checkpoint.layout import complete_checkpoints
from sft_cli.checkpoint.verify import verify

KEYS = {"train.max_steps": "6", "checkpoint.every_steps": "1", "checkpoint.keep": "9", "launch.gpus": "1"}


def mount(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["mount", *words], capture_output=True)


def train(disk: Path, *options: str) -> Ended:
    return sftune("train", *tiny(disk, **KEYS), *options, cwd=disk, timeout_seconds=600)


def files(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """60 MiB: room for four checkpoints of the tiny model."""
    path = tmp_path_factory.mktemp("disk")
    if (
        sys.platform != "linux"
        or os.geteuid() != 0
        or mount("-t", "tmpfs", "-o", "size=60m", "none", str(path)).returncode
    ):
        pytest.skip("may not mount")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.fixture(scope="module")
def full(disk: Path) -> Ended:
    """A run that has filled it."""
    return train(disk)


def test_a_disk_that_fills_up_ends_with_5_and_the_older_checkpoints_load(
    disk: Path, full: Ended, tmp_path: Path
) -> None:
    assert full.code == 5
    assert "WARNING: " in full.out
    assert "MiB free" in full.err
    assert "Older checkpoints are whole." in full.err
    assert "Traceback" not in full.err
    checkpoints = complete_checkpoints(disk / "run" / "checkpoints")
    assert len(checkpoints) >= 2
    assert len(list((disk / "run" / "checkpoints").iterdir())) == len(checkpoints), "nothing half left"
    for _, path in checkpoints:
        verify(path)
    assert sftune("export", checkpoints[0][1], tmp_path / "export", cwd=tmp_path).code == 0


def test_a_disk_that_is_read_only_is_left_as_it_was(disk: Path, full: Ended) -> None:
    before = files(disk / "run")
    assert mount("-o", "remount,ro,size=200m", str(disk)).returncode == 0
    for options in (("--resume",), ("--overwrite",), ("--set", f"output_dir={disk / 'new'}")):
        ended = train(disk, *options)
        assert ended.code == 5
        assert "can't be written to" in ended.err
    assert mount("-o", "remount,rw", str(disk)).returncode == 0
    assert files(disk / "run") == before


def test_a_damaged_shard_is_named_and_the_one_before_it_goes_on(disk: Path, full: Ended, tmp_path: Path) -> None:
    shutil.copytree(disk / "run", tmp_path / "run")
    older, newest = [path for _, path in complete_checkpoints(tmp_path / "run" / "checkpoints")][-2:]
    shard = next(newest.glob("*.distcp"))
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    shard.write_bytes(damaged)
    before = files(tmp_path / "run" / "checkpoints")
    ended = train(tmp_path, "--resume")
    assert ended.code == 5
    assert f"{shard.name} is not what was written" in ended.err
    assert f"--resume-from {older}" in ended.err
    assert files(tmp_path / "run" / "checkpoints") == before
    ended = train(tmp_path, "--resume-from", str(older))
    assert ended.code == 0, ended.err


def test_with_room_again_it_goes_on(disk: Path, full: Ended) -> None:
    assert mount("-o", "remount,rw,size=200m", str(disk)).returncode == 0
    ended = train(disk, "--resume")
    assert ended.code == 0, ended.err


def test_a_folder_that_is_deleted_during_the_run_ends_with_5(tmp_path: Path) -> None:
    keys = {**KEYS, "train.max_steps": "2000", "checkpoint.every_steps": "20", "checkpoint.keep": "1"}
    words = command("train", *tiny(tmp_path, **keys))
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 5, errors
    assert "the run folder is gone" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "run").exists()
