"""What `sftune profile` asks of a run, and what it calls the parts of a step in a trace."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

OWN = "sftune: "
"""How the name of every range of ours begins."""

DATA_WAIT = f"{OWN}data wait"
FORWARD = f"{OWN}forward"
BACKWARD = f"{OWN}backward"
RECOMPUTATION = f"{OWN}recomputation"
"""A forward that runs while backward does, for activation checkpointing."""
OPTIMIZER = f"{OWN}optimizer"
"""Clipping. torch itself marks the update, as `TORCH_UPDATE`."""
TORCH_UPDATE = "Optimizer.step#"
TORCH_STEP = "ProfilerStep#"
"""How torch's own ranges begin: an optimizer's update, and one step of the profiler's schedule."""

SLOT = f"{OWN}slot "
"""How the range of a kernel slot begins; the slot's name in the recipe follows."""

UNPROFILED_STEPS = 2
"""Before the profiler starts. The first allocates what stays, and the second is timed: what a step takes without it."""
WARM_UP_STEPS = 1
"""With the profiler on and what it saw thrown away: its first step costs more than the others."""


class Profiling(BaseModel):
    """What `sftune profile` asks of the workers, in place of training."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int
    """That are profiled."""
    memory: bool = False
    """Record memory over the step, and on a GPU write a snapshot of torch's allocator."""
    compare: str | None = None
    """A profile.json to compare with."""

    @property
    def first_step(self) -> int:
        """The first profiled step, from 1."""
        return UNPROFILED_STEPS + WARM_UP_STEPS + 1

    @property
    def all_steps(self) -> int:
        """That are run."""
        return UNPROFILED_STEPS + WARM_UP_STEPS + self.steps
