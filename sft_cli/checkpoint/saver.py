"""Checkpoints beside training: the next update waits for a copy in host memory, and a thread writes that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn

from sft_cli.checkpoint.commit import Target, mark_best, write_checkpoint
from sft_cli.checkpoint.host_copy import HostCopy
from sft_cli.checkpoint.host_memory import available_bytes
from sft_cli.checkpoint.progress import Progress
from sft_cli.checkpoint.state import Generators, local_bytes, training_state
from sft_cli.errors import SftError

_WRITE_TIMEOUT = timedelta(hours=2)
"""How long one rank may write while another has finished: 300 GB on a slow network disk."""
_MEMORY_SHARE = 0.8
"""How much of the host's free memory the copies of all its ranks may take."""


@dataclass
class _Writing:
    """A checkpoint on its way to the disk."""

    thread: threading.Thread
    path: list[Path] = field(default_factory=list)
    error: list[BaseException] = field(default_factory=list)


class CheckpointSaver:
    """Enter it before the first save, on every rank; leaving it waits for what is being written.

        with CheckpointSaver(target, model, optimizer, generators, device, said) as saver:
            saver.save(progress)     # returns while a copy is made
            saver.hold_updates()     # before the next update
            saver.check()            # raises what went wrong since

    Args:
        said: told the path of each checkpoint that is complete; in the main thread.
        say: told what makes saving slow.
        ranks_here: ranks that share this host's memory.
    """

    def __init__(
        self,
        target: Target,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        generators: Generators,
        device: torch.device,
        said: Callable[[Path], None],
        *,
        say: Callable[[str], None] = lambda words: None,
        ranks_here: int = 1,
    ) -> None:
        self._target = target
        self._model = model
        self._optimizer = optimizer
        self._generators = generators
        self._said = said
        self._ranks_here = ranks_here
        # Collectives of the thread must not mix with those of the loop.
        self._group = dist.new_group(backend="gloo", timeout=_WRITE_TIMEOUT)
        self._copy = HostCopy(device, say)
        self._writing: _Writing | None = None
        self._has_copied = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An error that all ranks meet leaves a good checkpoint to be finished; one of a single rank leaves none, and
        # the thread waits for a rank that may be gone.
        if error is None or isinstance(error, SftError):
            self.finish()
            self._copy.release()

    def save(self, progress: Progress) -> None:
        """Weights and moments may change again after `hold_updates`. Waits for the checkpoint before this one.

        Raises:
            CheckpointError: the one before this could not be written, or (where host memory is too small for a copy,
                so that this one is written at once) this one.
        """
        self.finish()
        state = training_state(self._model, self._optimizer, self._generators)
        sizes = self._sizes(local_bytes(state))
        if sizes.can_copy:
            copy = self._copy.take(state)
            self._has_copied = True
            self._start(copy, sizes.total, progress)
        else:
            self._start(state, sizes.total, progress)
            self.finish()

    def hold_updates(self) -> None:
        """What changes weights and moments on the device from now on comes after the copy of the last save."""
        self._copy.hold_device()

    def mark_best(self, step: int) -> None:
        """Makes a checkpoint that is complete the best one.

        Raises:
            CheckpointError: the disk would not take the link.
        """
        self.finish()
        mark_best(self._target.folder, step, self._group)

    def check(self) -> None:
        """Raises what has gone wrong, if the writing has ended; never waits.

        Raises:
            CheckpointError: the disk would not take it.
        """
        if self._writing is not None and not self._writing.thread.is_alive():
            self.finish()

    def finish(self) -> None:
        """Waits until nothing is being written.

        Raises:
            CheckpointError: the disk would not take it.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        writing.thread.join()
        if writing.error:
            raise writing.error[0]
        self._said(writing.path[0])

    def _start(self, state: Any, size: int, progress: Progress) -> None:
        def write() -> None:
            try:
                self._copy.wait()
                writing.path.append(write_checkpoint(self._target, state, size, progress, self._group))
            except BaseException as error:  # raised again in the main thread, by `finish`; torch's is no Exception
                writing.error.append(error)

        # A daemon: a process that has failed must end, whatever its thread still waits for.
        writing = _Writing(threading.Thread(target=write, name="checkpoint", daemon=True))
        writing.thread.start()
        self._writing = writing

    def _sizes(self, local: int) -> _Sizes:
        """What all ranks find out together, so that all of them do the same."""
        room = available_bytes() * _MEMORY_SHARE
        is_too_large = not self._has_copied and local * self._ranks_here > room
        counts = torch.tensor([local, int(is_too_large)], dtype=torch.int64)
        dist.all_reduce(counts, group=self._group)
        total, too_large = counts.tolist()
        return _Sizes(total, can_copy=not too_large)


@dataclass(frozen=True)
class _Sizes:
    total: int
    """Bytes of the checkpoint's tensors over all ranks."""
    can_copy: bool
