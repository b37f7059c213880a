"""The lowest evaluation loss so far, and how long ago it was."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Best:
    patience: int | None = None
    """Evaluations without a new best after which a run ends; None: it goes on."""
    loss: float | None = None
    step: int | None = None
    evaluations_since: int = 0

    def see(self, step: int, loss: float) -> bool:
        """Whether this evaluation is a new best."""
        if self.loss is None or loss < self.loss:
            self.loss, self.step, self.evaluations_since = loss, step, 0
            return True
        self.evaluations_since += 1
        return False

    @property
    def is_out_of_patience(self) -> bool:
        return self.patience is not None and self.evaluations_since >= self.patience
