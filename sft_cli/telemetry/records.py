"""The lines of metrics.jsonl as values."""

from __future__ import annotations

from dataclasses import dataclass

from sft_cli.telemetry.gpu import GpuReading
from sft_cli.telemetry.meter import PhaseSeconds, Totals, Window
from sft_cli.telemetry.slow_ranks import Slowest


@dataclass(frozen=True)
class StepRecord:
    """A training step. With `log_every_steps` above 1, `window` covers the steps since the line before."""

    step: int
    """From 1."""
    epoch: float
    """Passes over the data at the end of this step."""
    loss: float
    """Mean cross-entropy over the supervised tokens of this step's global batch, in nats."""
    grad_norm: float
    """Of that mean's gradient, before clipping."""
    learning_rate: float
    window: Window
    batch_hash: str = ""
    """Stands for the rows of this step's global batch, as hexadecimal digits: the same for the same batch."""
    gpu: GpuReading | None = None
    """Of rank 0's GPU; None on a CPU."""
    phases: PhaseSeconds | None = None
    """Of rank 0, over steps that its device has done; None where it has done none since the line before."""
    allocator_retries: int | None = None
    """Of rank 0's GPU since the run began; None on a CPU."""
    slowest: Slowest | None = None
    """None with one rank, and until it is known."""


@dataclass(frozen=True)
class EvaluationRecord:
    step: int
    """After how many steps; 0: before the first."""
    eval_loss: float
    """Mean cross-entropy over the supervised tokens, in nats."""
    eval_supervised_tokens: int


@dataclass(frozen=True)
class DoneRecord:
    """The run has reached its end."""

    totals: Totals
    train_loss: float | None
    """Of the last step."""
    eval_loss: float | None
    """Of the last evaluation; None where there was none."""
