"""Where a run stands, in words and numbers short enough for one line. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sft_cli.telemetry.gpu import GpuReading
from sft_cli.telemetry.records import StepRecord
from sft_cli.telemetry.sparkline import Course

_SMOOTHING_STEPS = 20
"""The smoothed loss forgets a step over about this many."""


@dataclass(frozen=True)
class Progress:
    """The state of the view after some step."""

    total_steps: int
    step: int = 0
    loss: float | None = None
    """Of the last step."""
    smoothed_loss: float | None = None
    """Exponential mean; a plain mean over the first steps, so that the first loss does not linger."""
    tokens_per_second: float | None = None
    learning_rate: float | None = None
    step_seconds: float | None = None
    """Smoothed."""
    eval_loss: float | None = None
    grad_norm: float | None = None
    mfu: float | None = None
    peak_memory_gib: float | None = None
    gpu: GpuReading | None = None
    course: Course = field(default_factory=Course)
    """Of the loss."""
    observations: int = 0

    def after(self, record: StepRecord) -> Progress:
        observations = self.observations + 1
        share = 1 / min(observations, _SMOOTHING_STEPS)
        return replace(
            self,
            step=record.step,
            loss=record.loss,
            smoothed_loss=_towards(self.smoothed_loss, record.loss, share),
            tokens_per_second=record.window.tokens_per_second,
            learning_rate=record.learning_rate,
            step_seconds=_towards(self.step_seconds, record.window.step_seconds, share),
            grad_norm=record.grad_norm,
            mfu=record.window.mfu,
            peak_memory_gib=record.window.peak_memory_gib,
            gpu=record.gpu,
            course=self.course.plus(record.loss),
            observations=observations,
        )

    @property
    def seconds_left(self) -> float | None:
        """Of training alone; None before the first step."""
        return None if self.step_seconds is None else self.step_seconds * (self.total_steps - self.step)

    def describe(self) -> str:
        """`step 12/400  loss 2.3145  1,234 tok/s  lr 3.0e-03  0:42 left`"""
        parts = [f"step {self.step:>{len(str(self.total_steps))}}/{self.total_steps}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.eval_loss is not None:
            parts.append(f"eval {self.eval_loss:.4f}")
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:,.0f} tok/s")
        if self.learning_rate is not None:
            parts.append(f"lr {self.learning_rate:.1e}")
        if self.seconds_left is not None:
            parts.append(f"{format_duration(self.seconds_left)} left")
        return "  ".join(parts)


def format_duration(seconds: float) -> str:
    """0:42, 12:05, 3:07:09, 2 d 03:07."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour:02}:{minute:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def _towards(before: float | None, now: float, share: float) -> float:
    return now if before is None else before + share * (now - before)
