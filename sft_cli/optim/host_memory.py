"""Host memory that a GPU copies from and to while it computes, made beside other work: pinning 45 GiB takes seconds."""

from __future__ import annotations

import mmap
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import torch
from torch import Tensor

from sft_cli.errors import SftError

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class HostMemory:
    """Zeros that a thread makes from now on.

    Args:
        device: that is to copy from and to it.
        size_bytes: how much will be asked for, or a little more.
    """

    def __init__(self, device: torch.device, size_bytes: int) -> None:
        self._device = device
        thread = ThreadPoolExecutor(1, "host memory")
        self._made: Future[Tensor] = thread.submit(host_memory, size_bytes, device)
        thread.shutdown(wait=False)
        self._taken = torch.empty(0, dtype=torch.uint8)

    def take(self, size_bytes: int) -> Tensor:
        """(size_bytes,) uint8, once it is there; to be asked for once. See `host_memory`."""
        self._taken = self._made.result()
        if self._taken.numel() < size_bytes:
            self.release()
            self._taken = host_memory(size_bytes, self._device)
        return self._taken[:size_bytes]

    def release(self) -> None:
        """The device forgets what was taken: its place may be given out again."""
        if self._device.type == "cuda" and self._taken.numel():
            torch.cuda.cudart().cudaHostUnregister(self._taken.data_ptr())


def host_memory(size_bytes: int, device: torch.device) -> Tensor:
    """(size_bytes,) uint8 of zeros, which `device` can copy from and to while it computes.

    Registered and not allocated as pinned: torch's allocator of pinned memory rounds up to a power of two. In huge
    pages where the kernel has some: each page is pinned for itself.

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
    memory = torch.frombuffer(pages, dtype=torch.uint8).zero_()
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
