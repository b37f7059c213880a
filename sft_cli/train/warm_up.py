"""A trial of the largest micro-batch before step 1, with nothing kept."""

from __future__ import annotations

from sft_cli.data.batch import Batch
from sft_cli.parallel.device import wait_for
from sft_cli.train.step import TrainStep


def warm_up(batch: Batch, train_step: TrainStep) -> None:
    """A step of one micro-batch that changes nothing. Every rank must take part.

    Kernels are compiled and tuned here and not inside the first step, whose time would mean nothing; and memory that
    does not suffice shows itself before anything is trained.
    """
    train_step.rehearse(batch)
    wait_for(train_step.device)
