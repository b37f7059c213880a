"""`sftune export`: checkpoints of a real run as model folders, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from support.finished_run import finished_run
from support.sftune import files_in, sftune


@pytest.fixture(scope="module")
def run() -> Path:
    """A finished run on two ranks, with a checkpoint after every second of eight steps."""
    return finished_run() / "run"


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_the_log_says_what_filling_the_model_took(run: Path) -> None:
    log = (run / "logs" / "rank-1.log").read_text()
    assert re.search(r"^drew \d{1,3}(,\d{3})+ random weights in ", log, re.MULTILINE), "not 0.00 billion"
    assert "GiB of host memory" in log


def test_the_last_checkpoint_is_the_runs_own_export(run: Path, tmp_path: Path) -> None:
    before = files_in(run)
    ended = sftune("export", run, tmp_path / "model", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "step-00000008" in ended.out
    assert files_in(tmp_path / "model") == files_in(run / "export")
    for name in files_in(run / "export"):
        assert (tmp_path / "model" / name).read_bytes() == (run / "export" / name).read_bytes(), name
    assert files_in(tmp_path) == {"model", *(f"model/{name}" for name in files_in(run / "export"))}
    assert files_in(run) == before


@pytest.mark.long
def test_an_earlier_one(run: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    ended = sftune("export", run / "checkpoints" / "step-00000002", "model", cwd=tmp_path)
    assert ended.code == 0, ended.err
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert len(weights(tmp_path / "model")) == len(weights(run / "export"))
    assert weights(tmp_path / "model") != weights(run / "export")


@pytest.mark.parametrize(
    ("checkpoint", "target", "code", "words"),
    [
        ("run/checkpoints/step-00000003", "model", 2, "is not there"),
        ("run/metrics.jsonl", "model", 2, "is a file"),
        ("run/logs", "model", 5, "not a complete checkpoint"),
        ("run", "run", 2, "not empty"),
        ("run", "file", 2, "a file of this name"),
    ],
)
def test_refused(run: Path, tmp_path: Path, checkpoint: str, target: str, code: int, words: str) -> None:
    (tmp_path / "run").symlink_to(run)
    (tmp_path / "file").write_text("")
    ended = sftune("export", checkpoint, target, cwd=tmp_path)
    assert ended.code == code
    assert words in ended.err
    assert len(ended.err.strip().splitlines()) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"run", "file"}


def test_a_damaged_checkpoint_is_named_and_leaves_nothing(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("export"))
    checkpoint = copy / "checkpoints" / "step-00000008"
    (checkpoint / "__1_0.distcp").unlink()
    ended = sftune("export", checkpoint, tmp_path / "model", cwd=tmp_path)
    assert ended.code == 5
    assert str(checkpoint) in ended.err
    assert "the checkpoint is damaged: __1_0.distcp is missing" in ended.err
    assert f"--resume-from {copy / 'checkpoints' / 'step-00000006'}" in ended.err
    (checkpoint / ".metadata").write_bytes(b"nonsense")
    ended = sftune("export", checkpoint, tmp_path / "model", cwd=tmp_path)
    assert ended.code == 5
    assert str(checkpoint) in ended.err
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


@pytest.mark.long
def test_a_checkpoint_of_another_model_than_the_plans(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("export"))
    plan = json.loads((copy / "plan.json").read_text())
    plan["model"]["config"]["intermediate_size"] *= 2
    (copy / "plan.json").write_text(json.dumps(plan))
    ended = sftune("export", copy, tmp_path / "model", cwd=tmp_path)
    assert ended.code == 5
    assert "another run's" in ended.err


@pytest.mark.long
def test_a_checkpoint_without_its_run_has_the_plan(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "checkpoints" / "step-00000008", tmp_path / "alone")
    ended = sftune("export", tmp_path / "alone", tmp_path / "model", cwd=tmp_path)
    assert ended.code == 0, ended.err
    (tmp_path / "alone" / "plan.json").unlink()
    ended = sftune("export", tmp_path / "alone", tmp_path / "other", cwd=tmp_path)
    assert ended.code == 2
    assert "plan.json is not there" in ended.err
