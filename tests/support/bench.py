"""What the first rank of a bench writes, made up."""

from __future__ import annotations

from typing import Any


def bench_result(rates: list[float], **changes: Any) -> dict[str, Any]:
    """Of steps of 900 real tokens in 1,000 slots at these tokens a second, on a CPU unless changed."""
    return {
        "warm_up_step_seconds": [9.0, 4.0],
        "timed": [
            {
                "steps": 1,
                "tokens": 900,
                "supervised_tokens": 500,
                "slots": 1000,
                "step_seconds": 900 / rate,
                "data_wait_seconds": 0.0,
                "tokens_per_second": rate,
                "mfu": None,
                "peak_memory_gib": 1.0,
            }
            for rate in rates
        ],
        "phases": [None for _ in rates],
        "late_kernels": [],
        "peak_memory_gib": 1.5,
        "peak_reserved_gib": None,
        "allocator_retries": None,
        "start_up_seconds": {"imports": 4.0, "kernels": 20.0, "compiled layers": 0.0, "warm-up": 3.0, "checks": 1.0},
        "seconds_to_first_step": 30.0,
        "was_finite": True,
        "launches": None,
        "gpu_busy_seconds": None,
        "kinds": {"GEMM": 2.0, "norm": 0.5},
        **changes,
    }
