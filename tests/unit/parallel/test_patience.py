from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from support.ranks import on_ranks
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.launch.failures import describe_failure
from sft_cli.parallel import patience
from sft_cli.parallel.patience import impatient, set_patience


def wait_in_vain(mesh: DeviceMesh) -> tuple[float, bool] | None:
    """Rank 1 is silent for longer than the patience of rank 0."""
    set_patience(mesh, 1.0)
    begin = time.monotonic()
    if dist.get_rank() == 1:
        time.sleep(3.0)
        return None
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        return time.monotonic() - begin, describe_failure(error, 0).is_lost_peer
    return None


def test_a_silent_rank_is_not_waited_for_long() -> None:
    told, _ = on_ranks(2, wait_in_vain)
    assert told is not None
    seconds, is_lost_peer = told
    assert seconds < 2.5
    assert is_lost_peer, "the rank that waited is not the one to be named"


def test_patience_is_of_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(patience.time, "monotonic", lambda: now)
    told: list[float] = []

    def finish_step() -> None:
        nonlocal now
        now += 20.0  # the device is not done when the host is

    for number in impatient([1, 2, 3], told.append, finish_step):
        now += 10.0 if number == 1 else 999.0
    assert told == [600.0]
    list(impatient([1], told.append, lambda: None))
    assert told[-1] == patience.LEAST_SECONDS
