"""Patience is of the time that the device takes for a step, not of the host's, which only launches it."""

from __future__ import annotations

import pytest
import torch

from sft_cli.parallel import patience
from sft_cli.parallel.device import local_device, wait_for
from sft_cli.parallel.patience import impatient


def test_the_first_step_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LEAST_SECONDS", 0.0)
    monkeypatch.setenv("LOCAL_RANK", "0")
    device = local_device("cuda")
    told: list[float] = []
    for _ in impatient([1, 2], told.append, lambda: wait_for(device)):
        torch.cuda._sleep(1_000_000_000)  # cycles: about half a second
    assert len(told) == 1
    assert told[0] > 20 * 0.2
