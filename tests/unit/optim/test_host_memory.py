"""Memory that is made beside other work, and what goes wrong with it."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from sft_cli.errors import SftError
from sft_cli.optim.host_memory import HostMemory

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class Driver:
    """What is registered, by address."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: int = 0) -> None:
        self.registered: dict[int, int] = {}
        self.answer = answer
        runtime = SimpleNamespace(cudaHostRegister=self.register, cudaHostUnregister=self.registered.pop)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())

    def register(self, pointer: int, size: int, flags: int) -> int:
        self.registered[pointer] = size
        return self.answer


@pytest.mark.parametrize("made", [0, 999, 1000, 5000])
def test_it_is_of_the_size_that_is_asked_for(made: int) -> None:
    memory = HostMemory(CPU, made).take(1000)
    assert (memory.shape, memory.dtype) == ((1000,), torch.uint8)
    assert not memory.any()
    memory.fill_(7)


def test_nothing_is_taken_of_nothing() -> None:
    assert HostMemory(CPU, 0).take(0).shape == (0,)


def test_a_device_knows_it_until_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    host = HostMemory(GPU, 5000)
    memory = host.take(1000)
    assert driver.registered == {memory.data_ptr(): 5000}
    host.release()
    assert not driver.registered


def test_what_was_too_small_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    memory = HostMemory(GPU, 500).take(1000)
    assert driver.registered == {memory.data_ptr(): 1000}


@pytest.mark.parametrize("size", [16, 1 << 62])
def test_a_host_without_room_says_what_to_do(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    Driver(monkeypatch, answer=2)
    with pytest.raises(SftError, match="host memory, where moments are to wait, can't be pinned") as caught:
        HostMemory(GPU, size).take(size)
    assert caught.value.where == "optimizer.offload"
