from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from sft_cli.checkpoint.layout import PROGRESS, complete_checkpoints
from sft_cli.checkpoint.save import Progress, save_checkpoint
from sft_cli.errors import CheckpointError


@pytest.fixture
def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.usefixtures("lone_rank")
def test_holds_weights_moments_and_progress(tmp_path: Path, trained: tuple[nn.Module, torch.optim.Optimizer]) -> None:
    model, optimizer = trained
    path = save_checkpoint(tmp_path / "checkpoints", model, optimizer, Progress(7, 0.5), keep=2)
    assert path.name == "step-00000007"
    assert json.loads((path / PROGRESS).read_text()) == {"step": 7, "epoch": 0.5}
    read = {
        "model": {"weight": torch.zeros(4, 4)},
        "optimizer": {"state": {"weight": {"exp_avg": torch.zeros(4, 4)}}},
    }
    dcp.load(read, checkpoint_id=path)
    assert torch.equal(read["model"]["weight"], model.weight)
    assert torch.equal(read["optimizer"]["state"]["weight"]["exp_avg"], optimizer.state[model.weight]["exp_avg"])


@pytest.mark.usefixtures("lone_rank")
def test_copies_what_belongs_beside_it(tmp_path: Path, trained: tuple[nn.Module, torch.optim.Optimizer]) -> None:
    (tmp_path / "exactness.json").write_text("{}")
    beside = [tmp_path / "exactness.json"]
    path = save_checkpoint(tmp_path / "checkpoints", *trained, Progress(1, 0.0), keep=1, beside=beside)
    assert (path / "exactness.json").read_text() == "{}"


@pytest.mark.usefixtures("lone_rank")
def test_keeps_the_newest(tmp_path: Path, trained: tuple[nn.Module, torch.optim.Optimizer]) -> None:
    for step in (1, 2, 10):
        save_checkpoint(tmp_path, *trained, Progress(step, 0.0), keep=2)
    assert [step for step, _ in complete_checkpoints(tmp_path)] == [2, 10]


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("limit_bytes", [200, 3000])
def test_a_write_that_fails_leaves_no_checkpoint(
    tmp_path: Path, trained: tuple[nn.Module, torch.optim.Optimizer], limit_bytes: int
) -> None:
    """Files that may not grow, as on a full disk: torch notices at different places."""
    save_checkpoint(tmp_path, *trained, Progress(1, 0.0), keep=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        with pytest.raises(CheckpointError, match="could not be written"):
            save_checkpoint(tmp_path, *trained, Progress(2, 0.0), keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [step for step, _ in complete_checkpoints(tmp_path)] == [1]


def test_unfinished_and_foreign_folders_are_no_checkpoints(tmp_path: Path) -> None:
    for name in (".step-00000003.unfinished", "step-3", "step-00000004x", "step-00000005"):
        (tmp_path / name).mkdir()
    assert [step for step, _ in complete_checkpoints(tmp_path)] == [5]
