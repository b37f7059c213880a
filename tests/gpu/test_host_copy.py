"""The copy of a checkpoint is made beside the work of the GPU, and before the next update."""

from __future__ import annotations

import time

import torch

from sft_cli.checkpoint.host_copy import HostCopy

DEVICE = torch.device("cuda", 0)


def test_an_update_comes_after_the_copy_and_the_host_does_not_wait() -> None:
    weights = [torch.full((1 << 26,), 1.0, device=DEVICE) for _ in range(8)]
    copies = HostCopy(DEVICE, print)
    copies.take(weights)  # its memory is new
    copies.wait()
    weights[0].mul_(1)  # loading a kernel waits for the device
    torch.cuda.synchronize()
    begin = time.perf_counter()
    copied = copies.take(weights)
    copies.hold_device()
    for weight in weights:
        weight.mul_(2)
    launched = time.perf_counter() - begin
    copies.wait()
    whole = time.perf_counter() - begin
    print(f"\n2 GiB to the host: launched in {launched * 1e3:.1f} ms, whole after {whole * 1e3:.1f}")
    assert all((tensor == 1).all() for tensor in copied)
    assert all((weight == 2).all() for weight in weights)
    assert launched < whole / 2


def test_its_memory_can_be_had_again() -> None:
    for _ in range(3):
        copies = HostCopy(DEVICE, print)
        copies.take([torch.ones(1 << 24, device=DEVICE)])
        copies.wait()
        del copies
        torch.ones(1, device=DEVICE).item()
