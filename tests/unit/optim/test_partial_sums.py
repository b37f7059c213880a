"""Sums in parts: nothing is lost when the buffer is used up or too small, and the next step begins at zero."""

from __future__ import annotations

import pytest
import torch

from sft_cli.optim import partial_sums
from sft_cli.optim.partial_sums import PartialSums

CPU = torch.device("cpu")


@pytest.mark.parametrize("counts", [[3], [1, 2, 3, 4], [8, 8, 1], [20, 1, 30, 8, 0]])
def test_every_part_counts_once(counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_sums, "PLACES", 8)
    sums = PartialSums()
    for step in (1, 2):
        for count in counts:
            sums.places(count, CPU).fill_(step)
        assert sum(float(part) for part in sums.take()) == step * sum(counts)
    assert sums.take() == []


def test_a_buffer_is_summed_once_and_not_for_each_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_sums, "PLACES", 100)
    sums = PartialSums()
    for _ in range(50):
        sums.places(4, CPU).fill_(1.0)
    assert [float(part) for part in sums.take()] == [100.0, 100.0]
