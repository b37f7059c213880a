"""What `sftune bench` asks of a run in place of training."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

PROFILER_WARM_UP_STEPS = 1
PROFILED_STEPS = 1
"""After the timed ones, so that the profiler disturbs none of them. Reading a trace of a large step takes seconds."""


class Benching(BaseModel):
    """Some steps that are timed, and one that is profiled after them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int
    """That are timed."""
    warm_up: int
    """Steps before them: they allocate what stays, and kernels meet lengths that are new to them."""
    started_at: float
    """When the workers were started, seconds since 1970."""
    result: str
    """The file that the first rank writes."""

    @property
    def all_steps(self) -> int:
        """That are run."""
        return self.warm_up + self.steps + PROFILER_WARM_UP_STEPS + PROFILED_STEPS
