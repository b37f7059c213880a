"""What a profile takes from the run itself: no trace says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """Of the profiled steps, means of one step."""

    tokens: float
    """Real ones, over all ranks."""
    slots: float
    """With padding, over all ranks."""
    supervised_tokens: float
    unprofiled_step_seconds: float
    """Of a step before the profiler was on."""
    model_flops_utilization: float | None
    """As the meter of training has it; None on a CPU."""
    peak_memory_gib: float
    gemm_tflops: float | None
    """What one large matrix product reaches on this card, TFLOP/s; None on a CPU."""
    traced_share: float = 1.0
    """Of the profiled time, what trace.json.gz holds: all, unless that would be too large a file."""
    memory_snapshot: str | None = None
    """The file's name."""

    @property
    def padding_share(self) -> float:
        """Of all slots those without a real token, fillers included."""
        return 1 - self.tokens / self.slots
