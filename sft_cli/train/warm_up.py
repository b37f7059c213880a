"""A trial of the largest micro-batch before step 1, with nothing kept."""

from __future__ import annotations

import time

from sft_cli.data.batch import Batch
from sft_cli.train.step import TrainStep


def warm_up(batch: Batch, train_step: TrainStep) -> float:
    """Forward and backward of one micro-batch; its gradients are dropped. Every rank must take part.

    Kernels are compiled and tuned here and not inside the first step, whose time would mean nothing; and memory that
    does not suffice for activations shows itself before anything is trained.

    Returns:
        Seconds that it took.
    """
    begin = time.perf_counter()
    train_step.backward([batch], max(1, batch.supervised_tokens)).item()
    train_step.optimizer.zero_grad()
    return time.perf_counter() - begin
