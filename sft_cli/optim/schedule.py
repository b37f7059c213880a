"""The learning rate of each step."""

from __future__ import annotations

import math

from sft_cli.recipe.schema import ScheduleSection

DECAY_SHARE = 0.1
"""The share of all steps in which `wsd` decays (Hägele et al. 2024, "Scaling Laws and Compute-Optimal Training")."""


def warmup_steps(schedule: ScheduleSection, total_steps: int) -> int:
    """Whole steps of warm-up; a fraction of the run is rounded to the nearest step."""
    return int(schedule.warmup) if schedule.warmup >= 1 else round(schedule.warmup * total_steps)


def learning_rate_ratio(schedule: ScheduleSection, step: int, total_steps: int) -> float:
    """The learning rate of a step over the peak.

    Warm-up rises linearly and reaches 1 at its last step; the last step of the run has `min_ratio`.

    Args:
        step: from 1 to `total_steps`.
    """
    warmup = warmup_steps(schedule, total_steps)
    if step <= warmup:
        return step / warmup
    if schedule.name == "constant":
        return 1.0
    decay_steps = max(1, round(total_steps * DECAY_SHARE)) if schedule.name == "wsd" else total_steps - warmup
    start = max(warmup, total_steps - decay_steps)
    progress = min(max(step - start, 0) / max(total_steps - start, 1), 1.0)
    falling = (1 + math.cos(math.pi * progress)) / 2 if schedule.name == "cosine" else 1 - progress
    return schedule.min_ratio + (1 - schedule.min_ratio) * falling
