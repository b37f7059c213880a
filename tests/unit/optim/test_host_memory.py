"""Memory that is made beside other work, and what goes wrong with it."""

from __future__ import annotations

import weakref
from contextlib import closing, nullcontext
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sft_cli.errors import SftError
from sft_cli.optim import host_memory
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
    host = HostMemory(GPU, 1050)
    memory = host.take(1000)
    assert driver.registered == {memory.data_ptr(): 1050}
    host.release()
    assert not driver.registered


@pytest.mark.parametrize("made", [500, 5000])
def test_what_was_of_another_size_is_released_before_there_is_more(made: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host has not room for both; and what is too large would lie pinned for the whole run."""
    driver, make, there = Driver(monkeypatch), host_memory.host_memory, list[bool]()
    host = HostMemory(GPU, made)
    assert host._made is not None
    before = weakref.ref(host._made.result())

    def make_another(size_bytes: int, device: torch.device) -> torch.Tensor:
        there.append(before() is not None)
        return make(size_bytes, device)

    monkeypatch.setattr(host_memory, "host_memory", make_another)
    memory = host.take(1000)
    assert driver.registered == {memory.data_ptr(): 1000}
    assert there == [False]


def test_what_fails_does_not_wait_for_memory_that_nobody_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, is_at_work, is_left, written = Driver(monkeypatch), Event(), Event(), list[int]()

    def zero(piece: torch.Tensor) -> None:
        written.append(piece.numel())
        is_at_work.set()
        assert is_left.wait(10)

    monkeypatch.setattr(host_memory, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(torch.Tensor, "zero_", zero)

    def fail() -> None:
        with closing(HostMemory(GPU, 100_000)) as host:
            made.append(host._made)
            assert is_at_work.wait(10)
            raise KeyError

    made: list[Any] = []
    with pytest.raises(KeyError):
        fail()
    is_left.set()
    assert made[0].result().numel() == 100_000
    assert written == [1000]
    assert not driver.registered


@pytest.mark.parametrize("size", [16, 1 << 62])
def test_a_host_without_room_says_what_to_do(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    Driver(monkeypatch, answer=2)
    with pytest.raises(SftError, match="host memory, where moments are to wait, can't be pinned") as caught:
        HostMemory(GPU, size).take(size)
    assert caught.value.where == "optimizer.offload"
