"""Host memory that a GPU copies from and to while it computes, made beside other work: pinning 45 GiB takes seconds."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import torch
from torch import Tensor

from sft_cli.errors import SftError

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_PIECE_BYTES = 1 << 28
"""Written between two looks at whether it is still wanted."""
_MOST_SPARE = 1.1
"""Of what was made, for what is taken: the rest stays pinned, and nobody uses it."""


class HostMemory:
    """Zeros that a thread makes from now on.

    Args:
        device: that is to copy from and to it.
        size_bytes: how much will be asked for, or a little more.
    """

    def __init__(self, device: torch.device, size_bytes: int) -> None:
        self._device = device
        self._is_left = Event()
        thread = ThreadPoolExecutor(1, "host memory")
        self._made: Future[Tensor] | None = thread.submit(host_memory, size_bytes, device, self._is_left.is_set)
        thread.shutdown(wait=False)
        self._taken = torch.empty(0, dtype=torch.uint8)

    def take(self, size_bytes: int) -> Tensor:
        """(size_bytes,) uint8, once it is there; to be asked for once. See `host_memory`."""
        assert self._made is not None, "asked for once"
        self._taken, self._made = self._made.result(), None
        if not size_bytes <= self._taken.numel() <= _MOST_SPARE * size_bytes:
            self.release()  # before the other is made: a host has not room for both
            self._taken = host_memory(size_bytes, self._device)
        return self._taken[:size_bytes]

    def release(self) -> None:
        """The device forgets what was taken: its place may be given out again."""
        if self._device.type == "cuda" and self._taken.numel():
            torch.cuda.cudart().cudaHostUnregister(self._taken.data_ptr())
        self._taken = torch.empty(0, dtype=torch.uint8)

    def close(self) -> None:
        """What nobody has taken is wanted no more: a process that has failed ends with its threads, and pinning takes
        seconds."""
        self._is_left.set()


def host_memory(size_bytes: int, device: torch.device, is_over: Callable[[], bool] = lambda: False) -> Tensor:
    """(size_bytes,) uint8 of zeros, which `device` can copy from and to while it computes.

    Registered and not allocated as pinned: torch's allocator of pinned memory rounds up to a power of two. In huge
    pages where the kernel has some: each page is pinned for itself.

    Args:
        is_over: whether nobody wants it any more: then it isn't pinned. Asked often.

    Raises:
        SftError: the host has not so much to spare.
    """
    if size_bytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    try:
        pages = mmap.mmap(-1, size_bytes, flags=_PRIVATE)
    except OSError as error:
        raise _no_room(size_bytes, str(error)) from error
    with suppress(OSError):  # a kernel that is built without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    # Zeros already, but not there before they are written: here by several threads, and by one in the driver.
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    for piece in memory.split(_PIECE_BYTES):
        if is_over():
            return memory
        piece.zero_()
    if device.type == "cuda":
        with torch.cuda.device(device):  # each thread has a current one of its own
            error_number = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
        if error_number:
            raise _no_room(size_bytes, f"CUDA error {error_number}")
    return memory


def _no_room(size_bytes: int, cause: str) -> SftError:
    return SftError(
        f"{size_bytes / 2**30:.1f} GiB of host memory, where moments are to wait, can't be pinned ({cause})",
        where="optimizer.offload",
        fix="Free host memory, look at the limit of this container, or write `offload: false`.",
    )
