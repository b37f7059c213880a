"""A copy of a rank's state in host memory, made while the GPU computes the next step's gradients.

Not torch's `StateDictStager`: the host waits for its copies, it walks a state for longer than some steps take, and in
torch 2.11 what torch puts around it closes it after the first.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from sft_cli.checkpoint.state import local_tensors

_ALIGNMENT = 256
"""Bytes between where two tensors begin, so that any dtype may lie there."""


class HostCopy:
    """One copy, whose memory is used again by the next.

        state = copies.take(state)      # on the host, but perhaps not whole yet
        copies.hold_device()            # what changes the tensors, on the device, comes after the copy
        copies.wait()                   # now it is whole

    Args:
        device: of the tensors, or of most: some may be on the host. On a GPU `take` returns while they are copied.
        say: told where that can't be.
    """

    def __init__(self, device: torch.device, say: Callable[[str], None]) -> None:
        self._device = device
        self._say = say
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._unregister: Callable[[], object] = lambda: None
        self._is_whole: torch.cuda.Event | None = None
        self._sources: Any = None
        """The state that is being copied; it has to live on until then."""

    @torch.no_grad()
    def take(self, state: Any) -> Any:
        """The same nested dicts, lists and tuples with tensors on the host; a DTensor stays one.

        Raises:
            torch.AcceleratorError: what the device did before has failed.
        """
        *begins, size = itertools.accumulate((_room(tensor) for tensor in local_tensors(state)), initial=0)
        if size > self._memory.nbytes:
            self.release()
            self._memory = torch.empty(size, dtype=torch.uint8)
            self._register()
        places = iter(begins)
        if self._stream is None:
            return self._copied(state, places)
        self._sources = state
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            copied = self._copied(state, places)
        self._is_whole = self._stream.record_event()
        return copied

    def hold_device(self) -> None:
        """What is launched from now on, on the current stream, comes after the copy; the host does not wait."""
        if self._is_whole is not None:
            torch.cuda.current_stream(self._device).wait_event(self._is_whole)

    def wait(self) -> None:
        """Until the copy is whole. Any thread may."""
        if self._is_whole is not None:
            self._is_whole.synchronize()
        self._sources = None

    def release(self) -> None:
        """Gives its memory back; nothing may be copied to it any more."""
        self._unregister()
        self._memory = torch.empty(0, dtype=torch.uint8)

    def _register(self) -> None:
        """So that the GPU copies to the memory at the link's full speed, and while it computes.

        Not allocated as pinned: torch's allocator of pinned memory rounds up to a power of two.
        """
        if self._device.type != "cuda":
            return
        place = self._memory.data_ptr()
        if error := int(torch.cuda.cudart().cudaHostRegister(place, self._memory.nbytes, 0)):
            # The driver keeps the error for whoever asks next, which would be torch, of something that went well.
            with suppress(torch.AcceleratorError):
                torch.zeros(1, device=self._device)
            self._say(
                f"{self._memory.nbytes / 2**30:.1f} GiB of host memory could not be pinned (CUDA error {error}): "
                "training waits while each checkpoint is copied there, and copies are slower"
            )
            return
        # Else other memory that comes to lie there could not be registered. Not at exit: the driver may be gone.
        finalizer = weakref.finalize(self, torch.cuda.cudart().cudaHostUnregister, place)
        finalizer.atexit = False
        self._unregister = finalizer

    def _copied(self, value: Any, places: Iterator[int]) -> Any:
        if isinstance(value, DTensor):
            return DTensor(self._copied(value.to_local(), places), value._spec, requires_grad=False)  # type: ignore[call-arg]
        if isinstance(value, Tensor):
            begin = next(places)
            host = self._memory[begin : begin + value.nbytes].view(value.dtype).view(value.shape)
            return host.copy_(value.detach(), non_blocking=True)
        if isinstance(value, dict):
            return {key: self._copied(part, places) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._copied(part, places) for part in value)
        return copy.deepcopy(value)


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
