"""Which GPU a rank takes, with a torch that says it had some."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sft_cli.errors import UsageError
from sft_cli.parallel.device import local_device

See = Callable[..., None]


@pytest.fixture
def see(monkeypatch: pytest.MonkeyPatch) -> See:
    """What a process sees: so many GPUs, and the variables of its starter."""

    def make(gpus: int, **environ: str) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
        monkeypatch.delenv("SLURM_LOCALID", raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)

    return make


def test_a_rank_takes_the_gpu_of_its_number(see: See) -> None:
    see(8, LOCAL_RANK="3")
    assert local_device("cuda") == torch.device("cuda", 3)


def test_a_task_that_slurm_bound_to_one_gpu_takes_that(see: See) -> None:
    """`srun --gpus-per-task=1`: each task sees its own GPU alone, as number 0."""
    see(1, LOCAL_RANK="3", SLURM_LOCALID="3")
    assert local_device("cuda") == torch.device("cuda", 0)


@pytest.mark.parametrize("environ", [{}, {"SLURM_LOCALID": "3"}])
def test_more_processes_than_gpus(see: See, environ: dict[str, str]) -> None:
    see(2 if environ else 1, LOCAL_RANK="3", **environ)
    with pytest.raises(UsageError, match=r"process 3 .* visible"):
        local_device("cuda")


def test_a_torch_without_cuda(see: See) -> None:
    see(0, LOCAL_RANK="0")
    with pytest.raises(UsageError, match="the driver shows a GPU"):
        local_device("cuda")
