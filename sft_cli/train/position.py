"""Where the data goes on after a checkpoint. No torch: the launcher counts a run's steps from there too."""

from __future__ import annotations

from sft_cli.checkpoint.progress import Progress
from sft_cli.data.order import BEGINNING, DataPosition


def data_position(progress: Progress | None) -> DataPosition:
    """The beginning without a checkpoint, and of a stream, whose steps alone say what comes next."""
    if progress is None or progress.data_epoch is None or progress.micro_batches is None:
        return BEGINNING
    return DataPosition(progress.step, progress.data_epoch, progress.micro_batches)
