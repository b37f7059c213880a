"""What torch's checkpointing says when something went wrong on some rank: the reasons inside, in one line each."""

from __future__ import annotations

from torch.distributed.checkpoint.api import CheckpointException


def reasons(error: CheckpointException) -> list[BaseException]:
    """What was raised on each rank that failed, lowest first."""
    return [failure[0] for _, failure in sorted(error.failures.items())]


def first_line(error: BaseException) -> str:
    """Of what an exception says; of one that says nothing its name."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
