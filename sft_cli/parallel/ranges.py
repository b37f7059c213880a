"""Named ranges of a step in torch's profiler; nothing at all while it is off."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch.autograd import profiler
from torch.profiler import record_function

from sft_cli.plan.profiling import RECOMPUTATION


def marked(name: str) -> AbstractContextManager[object]:
    """A range around what runs inside. A `record_function` costs some microseconds even while nobody records, so there
    is none then; what torch compiles for itself asks the same flag for the same reason."""
    return record_function(name) if profiler._is_profiler_enabled else nullcontext()


def marked_when_recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a checkpointed layer, whose second run, inside backward, is a range of its own."""

    @wraps(forward)
    def run(*arguments: Any, **options: Any) -> Any:
        # torch's own checkpointing asks the same: which backward this thread is in, -1 for none.
        if not profiler._is_profiler_enabled or torch._C._current_graph_task_id() == -1:
            return forward(*arguments, **options)
        with record_function(RECOMPUTATION):
            return forward(*arguments, **options)

    return run
