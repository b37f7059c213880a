"""How far a run has come at a checkpoint: what is restored beside tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sft_cli.checkpoint.layout import PROGRESS
from sft_cli.errors import CheckpointError


@dataclass(frozen=True)
class Progress:
    step: int
    """The last one that was taken."""
    epoch: float
    """Passes over the data at its end."""
    ranks: int = 1
    """Processes of the run."""
    data_epoch: int | None = None
    """The pass (from 0) that this step belongs to; None where the step alone says what comes next."""
    micro_batches: int | None = None
    """How many of that pass have been taken, over all ranks."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """The meter's totals."""
    train_loss: float | None = None
    eval_loss: float | None = None
    best_loss: float | None = None
    """The lowest evaluation loss; None before the first."""
    best_step: int | None = None
    evaluations_since_best: int = 0
    owes_evaluation: bool = False
    """Whether a stop came before this step's evaluation, which is the first thing to do when the run goes on."""

    def write(self, checkpoint: Path) -> None:
        (checkpoint / PROGRESS).write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, checkpoint: Path) -> Progress:
        """
        Raises:
            CheckpointError: there is none, or it is another version's.
        """
        path = checkpoint / PROGRESS
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"this checkpoint's {PROGRESS} can't be read: {error}",
                where=str(path),
                fix="Name another checkpoint with --resume-from.",
            ) from error
