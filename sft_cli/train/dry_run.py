"""One step of the run that would be, and nothing kept."""

from __future__ import annotations

import time
from collections.abc import Callable

from sft_cli.data.loader import StepBatches
from sft_cli.errors import NonFiniteError
from sft_cli.train.step import TrainStep


def dry_run(
    batches: StepBatches, train_step: TrainStep, say: Callable[[str], None], peak_memory_gib: Callable[[], float]
) -> None:
    """Takes one step and says what it cost.

    Args:
        batches: the heaviest that the data has.
        say: shows the user a line.
        peak_memory_gib: of this process so far.

    Raises:
        NonFiniteError: the loss or the gradient is not a number.
    """
    begin = time.perf_counter()
    result = train_step(batches.step, batches.micro_batches, stop_signal=0)
    numbers = result.read()
    if numbers.first_bad_step:
        raise NonFiniteError("the loss or gradient of the very first step is not a number", fix="Check the weights.")
    seconds = time.perf_counter() - begin
    totals = result.totals
    say(
        f"dry run: one step of {totals.slots:,} slots ({totals.tokens:,} real tokens, {totals.supervised_tokens:,} "
        f"supervised) took {seconds:.1f} s; loss {numbers.loss:.4f}, peak {peak_memory_gib():.1f} GiB"
    )
